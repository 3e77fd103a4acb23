from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from caprompt.backbones.layers import compact_gelu, linear_gelu

X = torch.linspace(-8, 8, 4001)


def test_values_are_exact() -> None:
    torch.testing.assert_close(compact_gelu(X.clone().requires_grad_()), F.gelu(X), rtol=1e-6, atol=1e-6)
    assert torch.equal(compact_gelu(X), F.gelu(X))


def test_the_slope_is_right_to_half_a_step_and_exact_far_out() -> None:
    mine, exact = X.clone().requires_grad_(), X.clone().requires_grad_()
    compact_gelu(mine).sum().backward()
    F.gelu(exact).sum().backward()
    assert mine.grad is not None
    assert exact.grad is not None
    assert (mine.grad - exact.grad).abs().max() <= 0.5 / 200 + 1e-6
    assert mine.grad[0] == 0
    assert mine.grad[-1] == 1


def test_a_bias_is_added_before() -> None:
    mine, exact, bias = X.clone().requires_grad_(), X.clone().requires_grad_(), torch.linspace(1, -1, len(X))
    out, expected = compact_gelu(mine, bias), F.gelu(exact + bias)
    torch.testing.assert_close(out, expected, rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(compact_gelu(X, bias), expected)
    (mine_grad,), (exact_grad,) = (torch.autograd.grad(each.sum(), x) for each, x in ((out, mine), (expected, exact)))
    assert (mine_grad - exact_grad).abs().max() <= 0.5 / 200 + 1e-6


def test_double_precision_is_not_narrowed() -> None:
    x = X.double().requires_grad_()
    torch.testing.assert_close(compact_gelu(x), F.gelu(x), rtol=1e-12, atol=1e-12)


def test_half_precision_is_within_its_rounding() -> None:
    mine, exact = X.bfloat16().requires_grad_(), X.bfloat16().double().requires_grad_()
    out, expected = compact_gelu(mine), F.gelu(exact)
    assert out.dtype == torch.bfloat16
    torch.testing.assert_close(out.double(), expected, rtol=2**-8, atol=6e-4)
    for each in (out, expected):
        each.sum().backward()
    assert mine.grad is not None
    assert exact.grad is not None
    assert (mine.grad.double() - exact.grad).abs().max() < 0.5 / 200 + 2**-7


def test_a_byte_a_number_is_kept() -> None:
    kept: list[torch.dtype] = []
    with torch.autograd.graph.saved_tensors_hooks(lambda tensor: kept.append(tensor.dtype) or tensor, lambda tensor: tensor):
        compact_gelu(X.clone().requires_grad_())
    assert kept == [torch.uint8]


@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU here")
def test_the_fused_map_is_within_bfloat16_rounding() -> None:
    chance = torch.Generator().manual_seed(0)
    x, weight, bias = (torch.randn(*shape, generator=chance).cuda().bfloat16() for shape in ((3, 5, 64), (96, 64), (96,)))
    exact = F.gelu(F.linear(x.double(), weight.double() / 8, bias.double()))
    fused = linear_gelu(x, weight / 8, bias)
    assert fused.shape == (3, 5, 96)
    assert float((fused.double() - exact).norm() / exact.norm()) < 4e-3
