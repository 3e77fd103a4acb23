"""LayerNorm, GELU and linear layers of a frozen ViT that save little for the backward pass.

In half precision on a GPU these layers are bound by memory traffic, so what they save for backward
is stored in a byte per value.

- `Norm` (`compact_norm`): the gradient of a layer norm needs its normalized input only in a dot
  product over all channels of a token, in which rounding errors average out. float8 with three
  mantissa bits is enough.
- `compact_gelu` saves only the derivative, as uint8: it lies in -0.13 ... 1.13, so steps of 1/200
  are as fine as bfloat16 near 1, and 0 and 1 are exact.
- `linear_gelu`, without gradients, fuses the GELU into the preceding matmul: the cuBLAS epilogue
  computes its tanh form, which differs from the exact one by less than the rounding of bfloat16.
- `linear` is a linear layer whose bias addition torch.compile can fuse into the next kernel.
"""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from caprompt.backbones.operators import define_operator

__all__ = ["Norm", "compact_gelu", "compact_norm", "linear", "linear_gelu"]

STEPS = 200  # quantization steps per unit of the GELU's derivative
ZERO = 27  # the uint8 value of a derivative of 0


class _CompactNorm(torch.autograd.Function):
    """Layer norm with frozen weight and bias that saves its normalized input as float8."""

    @staticmethod
    def forward(context: Any, x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
        wide = x.float()
        variance, mean = torch.var_mean(wide, dim=-1, correction=0, keepdim=True)
        scale = torch.rsqrt(variance + eps)
        normed = (wide - mean) * scale
        context.save_for_backward(normed.to(torch.float8_e4m3fn), scale, weight)
        return (normed * weight + bias).to(x.dtype)

    @staticmethod
    def backward(context: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        quantized, scale, weight = context.saved_tensors
        normed, inner = quantized.float(), gradient.float() * weight
        projection = (inner * normed).mean(dim=-1, keepdim=True)
        input_gradient = scale * (inner - inner.mean(dim=-1, keepdim=True) - normed * projection)
        return input_gradient.to(gradient.dtype), None, None, None


def compact_norm(x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    """Apply a layer norm with frozen weight and bias, saving float8 values for backward.

    >>> x = torch.tensor([[1.0, 3.0]], requires_grad=True)
    >>> compact_norm(x, torch.ones(2), torch.zeros(2), 0.0).tolist()
    [[-1.0, 1.0]]
    """
    out: Tensor = _CompactNorm.apply(x, weight, bias, eps)  # type: ignore[no-untyped-call]
    return out


class Norm(nn.LayerNorm):
    """LayerNorm of a block, optionally compact."""

    compact = False  # save float8 values for backward; worthwhile only in fused (compiled) kernels

    def forward(self, x: Tensor) -> Tensor:
        """(..., D) -> (..., D)."""
        if self.compact and x.requires_grad and not self.weight.requires_grad:
            return compact_norm(x, self.weight, self.bias, self.eps)
        return super().forward(x)


def linear_gelu(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Compute gelu(x W^T + b) in one kernel, without gradients: (..., D) -> (..., M)."""
    out: Tensor = torch.ops.caprompt.linear_gelu(x, weight, bias)
    return out


def _linear_gelu(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    out: Tensor = torch._addmm_activation(bias, x.flatten(0, -2), weight.t(), use_gelu=True)
    shaped: Tensor = out.unflatten(0, x.shape[:-1])
    return shaped


def _describe_linear_gelu(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return x.new_empty(*x.shape[:-1], weight.shape[0])


define_operator("linear_gelu(Tensor x, Tensor weight, Tensor bias) -> Tensor", _linear_gelu, _describe_linear_gelu)


class _CompactGelu(torch.autograd.Function):
    """GELU, exact in float32, that saves its derivative as uint8."""

    @staticmethod
    def forward(context: Any, x: Tensor, bias: Tensor | None) -> Tensor:
        wide = x.to(torch.promote_types(x.dtype, torch.float32))
        wide = wide if bias is None else wide + bias
        cdf, density = _normal(wide) if x.dtype == wide.dtype else _approximate_normal(wide)
        slope = cdf + wide * density
        context.save_for_backward((slope * STEPS + (ZERO + 0.5)).to(torch.uint8))  # + 0.5, since the cast truncates
        return (wide * cdf).to(x.dtype)

    @staticmethod
    def backward(context: Any, gradient: Tensor) -> tuple[Tensor, None]:
        quantized: Tensor = context.saved_tensors[0]
        return gradient * ((quantized.to(gradient.dtype) - ZERO) * (1 / STEPS)), None


def _normal(x: Tensor) -> tuple[Tensor, Tensor]:
    """Return the cumulative distribution and the density of the standard normal distribution."""
    return 0.5 * (1 + torch.erf(x * math.sqrt(0.5))), torch.exp(-0.5 * x * x) * (1 / math.sqrt(2 * math.pi))


def _approximate_normal(x: Tensor) -> tuple[Tensor, Tensor]:
    """Approximate `_normal` with a single exponential.

    In half precision, with half the memory traffic, the exact one would bound the kernel.
    """
    scale, cubic = 2 * math.sqrt(2 / math.pi), 0.044715
    cdf = torch.sigmoid(scale * x * (1 + cubic * x * x))
    return cdf, cdf * (1 - cdf) * (scale * (1 + 3 * cubic * x * x))


def compact_gelu(x: Tensor, bias: Tensor | None = None) -> Tensor:
    """Compute gelu(x + bias) with a frozen bias, storing the derivative as uint8 for backward.

    >>> x = torch.tensor([-30.0, 0.25, 30.0], requires_grad=True)
    >>> compact_gelu(x, torch.full((3,), 0.25)).sum().backward()
    >>> [round(slope, 3) for slope in x.grad.tolist()]
    [0.0, 0.865, 1.0]
    """
    if not x.requires_grad:
        return F.gelu(x if bias is None else x + bias)
    out: Tensor = _CompactGelu.apply(x, bias)  # type: ignore[no-untyped-call]
    return out


def linear(layer: nn.Module, x: Tensor) -> Tensor:
    """Apply a linear layer, (..., D) -> (..., M).

    Under torch.compile the bias is added separately, so that it can be fused.

    >>> layer = nn.Linear(3, 2)
    >>> x = torch.ones(4, 3)
    >>> torch.equal(linear(layer, x), layer(x))
    True
    """
    if torch.compiler.is_compiling() and type(layer) is nn.Linear and layer.bias is not None:
        return F.linear(x, layer.weight) + layer.bias
    out: Tensor = layer(x)
    return out
