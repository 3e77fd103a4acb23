"""Layers of the ViT that keep little for the backward pass: LayerNorm, GELU and linear maps."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

__all__ = ["Norm", "compact_gelu", "compact_norm", "linear", "linear_gelu"]

STEPS = 200  # of the derivative, per unit
ZERO = 27  # the byte that stands for a derivative of 0


class _CompactNorm(torch.autograd.Function):
    """Forward as ever; backward from one byte a number. Weight and bias are frozen."""

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
        kept, scale, weight = context.saved_tensors
        normed, inner = kept.float(), gradient.float() * weight
        along = (inner * normed).mean(dim=-1, keepdim=True)
        back = scale * (inner - inner.mean(dim=-1, keepdim=True) - normed * along)
        return back.to(gradient.dtype), None, None, None


def compact_norm(x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    """Layer norm over the last dimension with frozen weight and bias.

    >>> x = torch.tensor([[1.0, 3.0]], requires_grad=True)
    >>> compact_norm(x, torch.ones(2), torch.zeros(2), 0.0).tolist()
    [[-1.0, 1.0]]
    """
    out: Tensor = _CompactNorm.apply(x, weight, bias, eps)  # type: ignore[no-untyped-call]
    return out


class Norm(nn.LayerNorm):
    """The norm of a block."""

    compact = False  # keep a byte a number for the gradient; worth it where kernels are fused

    def forward(self, x: Tensor) -> Tensor:
        """(..., D) -> (..., D)."""
        if self.compact and x.requires_grad and not self.weight.requires_grad:
            return compact_norm(x, self.weight, self.bias, self.eps)
        return super().forward(x)


@torch.library.custom_op("caprompt::linear_gelu", mutates_args=(), schema="(Tensor x, Tensor weight, Tensor bias) -> Tensor")
def linear_gelu(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """gelu(x W^T + b) in one kernel, without gradient: (..., D) -> (..., M)."""
    out: Tensor = torch._addmm_activation(bias, x.flatten(0, -2), weight.t(), use_gelu=True)
    shaped: Tensor = out.unflatten(0, x.shape[:-1])
    return shaped


@linear_gelu.register_fake
def _(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return x.new_empty(*x.shape[:-1], weight.shape[0])


class _CompactGelu(torch.autograd.Function):
    """GELU forward, exact in float32; backward from one byte a number."""

    @staticmethod
    def forward(context: Any, x: Tensor, bias: Tensor | None) -> Tensor:
        wide = x.to(torch.promote_types(x.dtype, torch.float32))
        wide = wide if bias is None else wide + bias
        below, density = _normal(wide) if x.dtype == wide.dtype else _nearly_normal(wide)
        slope = below + wide * density
        context.save_for_backward((slope * STEPS + (ZERO + 0.5)).to(torch.uint8))  # cutting off the fraction rounds
        return (wide * below).to(x.dtype)

    @staticmethod
    def backward(context: Any, gradient: Tensor) -> tuple[Tensor, None]:
        kept: Tensor = context.saved_tensors[0]
        return gradient * ((kept.to(gradient.dtype) - ZERO) * (1 / STEPS)), None


def _normal(x: Tensor) -> tuple[Tensor, Tensor]:
    """The normal distribution function and its density."""
    return 0.5 * (1 + torch.erf(x * math.sqrt(0.5))), torch.exp(-0.5 * x * x) * (1 / math.sqrt(2 * math.pi))


def _nearly_normal(x: Tensor) -> tuple[Tensor, Tensor]:
    """The same by one exponential, which is what a GPU has time for while it reads and writes half as many bytes."""
    scale, cubic = 2 * math.sqrt(2 / math.pi), 0.044715
    below = torch.sigmoid(scale * x * (1 + cubic * x * x))
    return below, below * (1 - below) * (scale * (1 + 3 * cubic * x * x))


def compact_gelu(x: Tensor, bias: Tensor | None = None) -> Tensor:
    """GELU that keeps a byte a number for its gradient; of x + bias where there is a frozen one, which kernels add on the way.

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
    """A linear map of x, (..., D) -> (..., M). A compiler sees the bias apart: it adds it in the kernel that reads the product.

    >>> layer = nn.Linear(3, 2)
    >>> x = torch.ones(4, 3)
    >>> torch.equal(linear(layer, x), layer(x))
    True
    """
    if torch.compiler.is_compiling() and type(layer) is nn.Linear and layer.bias is not None:
        return F.linear(x, layer.weight) + layer.bias
    out: Tensor = layer(x)
    return out
