"""The GELU of a frozen MLP in half precision on a GPU, where memory traffic is what it costs.

Without gradient it belongs into the matrix product before it (`linear_gelu`): cuBLAS has one in its epilogue, in the tanh form,
whose distance from the exact one is below the rounding of bfloat16. With gradient (`compact_gelu`) only the derivative is kept for
the backward pass, in one byte: it lies in -0.13 ... 1.13, so steps of 1/200 are as fine as bfloat16 is at one; 0 and 1 are exact.
"""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

__all__ = ["compact_gelu", "linear_gelu"]

STEPS = 200  # of the derivative, per unit
ZERO = 27  # the byte that stands for a derivative of 0


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
