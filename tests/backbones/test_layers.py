"""Compact LayerNorm, GELU and linear layers against their plain counterparts."""

from __future__ import annotations

import shutil

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from caprompt.backbones.fp8 import Fp8Linear
from caprompt.backbones.layers import Norm, compact_gelu, compact_norm, linear, linear_gelu

X = torch.linspace(-8, 8, 4001)


@pytest.fixture
def norm() -> Norm:
    norm = Norm(64, eps=1e-6).requires_grad_(False)
    generator = torch.Generator().manual_seed(0)
    norm.weight.copy_(torch.rand(64, generator=generator) + 0.5)
    norm.bias.copy_(torch.randn(64, generator=generator))
    return norm


def make_tokens(outlier: float = 0.0) -> Tensor:
    x = torch.randn(5, 9, 64, generator=torch.Generator().manual_seed(1)) * 3 + 1
    x[..., 7] += outlier
    return x


def test_compact_norm_has_the_values_of_layer_norm(norm: Norm) -> None:
    norm.compact = True
    expected = F.layer_norm(make_tokens(), (64,), norm.weight, norm.bias, norm.eps)
    torch.testing.assert_close(norm(make_tokens().requires_grad_()), expected)
    torch.testing.assert_close(norm(make_tokens()), expected)


@pytest.mark.parametrize("outlier", [0.0, 200.0])
def test_gradient_error_of_compact_norm_is_small(norm: Norm, outlier: float) -> None:
    upstream = torch.randn(5, 9, 64, generator=torch.Generator().manual_seed(2))
    x, x_exact = (make_tokens(outlier).requires_grad_() for _ in range(2))
    (gradient,) = torch.autograd.grad(compact_norm(x, norm.weight, norm.bias, norm.eps), x, upstream)
    (expected,) = torch.autograd.grad(norm(x_exact), x_exact, upstream)
    assert float((gradient - expected).norm() / expected.norm()) < 8e-3


def test_compact_norm_saves_one_byte_per_value(norm: Norm) -> None:
    norm.compact = True
    saved: list[torch.dtype] = []
    with torch.autograd.graph.saved_tensors_hooks(
        lambda tensor: saved.append(tensor.dtype) if tensor.numel() == 5 * 9 * 64 else None, lambda tensor: tensor
    ):
        norm(make_tokens().requires_grad_())
    assert saved == [torch.float8_e4m3fn]


def test_trainable_norm_gets_gradients(norm: Norm) -> None:
    norm.compact = True
    norm.requires_grad_(True)
    norm(make_tokens().requires_grad_()).sum().backward()
    assert norm.weight.grad is not None
    assert norm.bias.grad is not None


def test_compact_gelu_has_exact_values() -> None:
    torch.testing.assert_close(compact_gelu(X.clone().requires_grad_()), F.gelu(X), rtol=1e-6, atol=1e-6)
    assert torch.equal(compact_gelu(X), F.gelu(X))


def test_derivative_of_compact_gelu_is_within_half_a_step_and_exact_in_the_tails() -> None:
    x, x_exact = X.clone().requires_grad_(), X.clone().requires_grad_()
    compact_gelu(x).sum().backward()
    F.gelu(x_exact).sum().backward()
    assert x.grad is not None
    assert x_exact.grad is not None
    assert (x.grad - x_exact.grad).abs().max() <= 0.5 / 200 + 1e-6
    assert x.grad[0] == 0
    assert x.grad[-1] == 1


def test_compact_gelu_adds_a_bias_first() -> None:
    x, x_exact, bias = X.clone().requires_grad_(), X.clone().requires_grad_(), torch.linspace(1, -1, len(X))
    out, expected = compact_gelu(x, bias), F.gelu(x_exact + bias)
    torch.testing.assert_close(out, expected, rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(compact_gelu(X, bias), expected)
    (gradient,), (exact_gradient,) = torch.autograd.grad(out.sum(), x), torch.autograd.grad(expected.sum(), x_exact)
    assert (gradient - exact_gradient).abs().max() <= 0.5 / 200 + 1e-6


def test_compact_gelu_keeps_double_precision() -> None:
    x = X.double().requires_grad_()
    torch.testing.assert_close(compact_gelu(x), F.gelu(x), rtol=1e-12, atol=1e-12)


def test_compact_gelu_in_bfloat16_is_within_its_rounding() -> None:
    x, x_exact = X.bfloat16().requires_grad_(), X.bfloat16().double().requires_grad_()
    out, expected = compact_gelu(x), F.gelu(x_exact)
    assert out.dtype == torch.bfloat16
    torch.testing.assert_close(out.double(), expected, rtol=2**-8, atol=6e-4)
    for output in (out, expected):
        output.sum().backward()
    assert x.grad is not None
    assert x_exact.grad is not None
    assert (x.grad.double() - x_exact.grad).abs().max() < 0.5 / 200 + 2**-7


def test_compact_gelu_saves_one_byte_per_value() -> None:
    saved: list[torch.dtype] = []
    with torch.autograd.graph.saved_tensors_hooks(lambda tensor: saved.append(tensor.dtype) or tensor, lambda tensor: tensor):
        compact_gelu(X.clone().requires_grad_())
    assert saved == [torch.uint8]


@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU here")
def test_linear_gelu_is_within_bfloat16_rounding() -> None:
    generator = torch.Generator().manual_seed(0)
    x, weight, bias = (torch.randn(*shape, generator=generator).cuda().bfloat16() for shape in ((3, 5, 64), (96, 64), (96,)))
    exact = F.gelu(F.linear(x.double(), weight.double() / 8, bias.double()))
    fused = linear_gelu(x, weight / 8, bias)
    assert fused.shape == (3, 5, 96)
    assert float((fused.double() - exact).norm() / exact.norm()) < 4e-3


INDUCTOR = pytest.param(
    "inductor",
    marks=[pytest.mark.slow, pytest.mark.skipif(shutil.which("g++") is None, reason="torch.compile needs a C++ compiler here")],
)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("backend", [None, "aot_eager", INDUCTOR])
def test_linear_has_the_values_and_gradients_of_the_layer(bias: bool, backend: str | None) -> None:
    generator = torch.Generator().manual_seed(0)
    layer = nn.Linear(8, 4, bias=bias)
    for parameter in layer.parameters():
        parameter.data.copy_(torch.randn(parameter.shape, generator=generator))
    x = torch.randn(2, 5, 8, generator=generator, requires_grad=True)
    upstream = torch.randn(2, 5, 4, generator=generator)
    inputs = [x, *layer.parameters()]
    expected = F.linear(x, layer.weight, layer.bias)
    out = (linear if backend is None else torch.compile(linear, dynamic=False, backend=backend))(layer, x)
    if backend is None:
        assert torch.equal(out, expected)
    torch.testing.assert_close(out, expected)
    gradients = (torch.autograd.grad(output, inputs, upstream) for output in (out, expected))
    for gradient, exact in zip(*gradients, strict=True):
        torch.testing.assert_close(gradient, exact)


def test_linear_calls_layers_of_other_classes() -> None:
    layer, x = Fp8Linear(nn.Linear(16, 16).requires_grad_(False)), torch.randn(3, 16, generator=torch.Generator().manual_seed(0))
    assert torch.equal(torch.compile(linear, dynamic=False, backend="eager")(layer, x), layer(x))
