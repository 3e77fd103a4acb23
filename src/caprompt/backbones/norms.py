"""A layer norm that keeps little for its gradient.

The gradient of a norm needs its normed input only along one direction per token, a sum over all channels, so that rounding of
single numbers averages out: a byte each (float8, three bits of mantissa) is enough.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

__all__ = ["Norm", "compact_norm"]


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
