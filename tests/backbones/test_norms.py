from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from caprompt.backbones.layers import Norm, compact_norm


@pytest.fixture
def norm() -> Norm:
    own = Norm(64, eps=1e-6).requires_grad_(False)
    chance = torch.Generator().manual_seed(0)
    own.weight.copy_(torch.rand(64, generator=chance) + 0.5)
    own.bias.copy_(torch.randn(64, generator=chance))
    return own


def tokens(outlier: float = 0.0) -> Tensor:
    x = torch.randn(5, 9, 64, generator=torch.Generator().manual_seed(1)) * 3 + 1
    x[..., 7] += outlier
    return x


def test_values_are_those_of_a_layer_norm(norm: Norm) -> None:
    norm.compact = True
    expected = F.layer_norm(tokens(), (64,), norm.weight, norm.bias, norm.eps)
    torch.testing.assert_close(norm(tokens().requires_grad_()), expected)
    torch.testing.assert_close(norm(tokens()), expected)


@pytest.mark.parametrize("outlier", [0.0, 200.0])
def test_gradients_are_right_to_well_below_bfloat16(norm: Norm, outlier: float) -> None:
    pull = torch.randn(5, 9, 64, generator=torch.Generator().manual_seed(2))
    mine, exact = (tokens(outlier).requires_grad_() for _ in range(2))
    (got,) = torch.autograd.grad(compact_norm(mine, norm.weight, norm.bias, norm.eps), mine, pull)
    (wanted,) = torch.autograd.grad(norm(exact), exact, pull)
    assert float((got - wanted).norm() / wanted.norm()) < 8e-3


def test_a_byte_a_number_is_kept(norm: Norm) -> None:
    norm.compact = True
    kept: list[torch.dtype] = []
    with torch.autograd.graph.saved_tensors_hooks(
        lambda tensor: kept.append(tensor.dtype) if tensor.numel() == 5 * 9 * 64 else None, lambda tensor: tensor
    ):
        norm(tokens().requires_grad_())
    assert kept == [torch.float8_e4m3fn]


def test_a_norm_that_learns_keeps_everything(norm: Norm) -> None:
    norm.compact = True
    norm.requires_grad_(True)
    norm(tokens().requires_grad_()).sum().backward()
    assert norm.weight.grad is not None
    assert norm.bias.grad is not None
