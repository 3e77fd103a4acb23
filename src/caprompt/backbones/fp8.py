"""8-bit floating point for the frozen matrices (`precision="fp8"`), on cards that multiply it: Ada, Hopper and later.

A product x W^T is computed of rows rounded to float8 (e4m3, three bits of mantissa), each row with a scale of its own: the rows of
x as they come, those of W once. Gradients go back the same way, through W^T. Biases, norms, attention and what learns stay as they
are with bfloat16, and so do the few products of the class token alone.

Shapes: n rows of k numbers.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from caprompt.backbones.vit import ViT

__all__ = ["Fp8Linear", "as_rows", "convert_from_fp8", "convert_to_fp8", "scaled_product", "set_precision", "uses_fp8"]

FLOAT8 = torch.float8_e4m3fn
LARGEST = torch.finfo(FLOAT8).max  # 448
PLACES = (("attn", "qkv"), ("attn", "proj"), ("mlp", "fc1"), ("mlp", "fc2"))  # in every block


def as_rows(x: Tensor) -> tuple[Tensor, Tensor]:
    """Rows in float8 and the scale of each: (n, k) -> (n, k), (n, 1).

    >>> rows, scales = as_rows(torch.tensor([[1.0, -2.0], [0.0, 0.0]]))
    >>> (rows.float() * scales).tolist()
    [[1.0, -2.0], [0.0, 0.0]]
    """
    scale = (x.abs().amax(dim=1, keepdim=True).float() / LARGEST).clamp_min(torch.finfo(torch.float32).tiny)
    return (x.float() / scale).to(FLOAT8), scale


def scaled_product(x: Tensor, rows: Tensor, scales: Tensor) -> Tensor:
    """x W^T of the rows of x and of W in float8: (..., k), (m, k), (m, 1) -> (..., m)."""
    own, own_scales = as_rows(x.flatten(0, -2))
    if x.is_cuda:
        out = torch._scaled_mm(own, rows.t(), own_scales, scales.t(), out_dtype=x.dtype, use_fast_accum=True)
    else:  # the same numbers, multiplied in float32
        out = ((own.float() * own_scales) @ (rows.float() * scales).t()).to(x.dtype)
    shaped: Tensor = out.unflatten(0, x.shape[:-1])
    return shaped


class _Product(torch.autograd.Function):
    """There by W, back by W^T."""

    @staticmethod
    def forward(context: Any, x: Tensor, there: Tensor, there_scales: Tensor, back: Tensor, back_scales: Tensor) -> Tensor:
        context.save_for_backward(back, back_scales)
        return scaled_product(x, there, there_scales)

    @staticmethod
    def backward(context: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        return scaled_product(gradient, *context.saved_tensors), None, None, None, None


class Fp8Linear(nn.Module):
    """A frozen linear map whose product is in float8; weight and bias stay beside it under their names."""

    there: Tensor  # W, (m, k)
    there_scales: Tensor
    back: Tensor  # W^T, (k, m)
    back_scales: Tensor

    def __init__(self, plain: nn.Linear) -> None:
        super().__init__()
        self.weight, self.bias = plain.weight, plain.bias
        for name, matrix in (("there", plain.weight), ("back", plain.weight.t().contiguous())):
            rows, scales = as_rows(matrix.detach())
            self.register_buffer(name, rows, persistent=False)
            self.register_buffer(f"{name}_scales", scales, persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        product: Tensor = _Product.apply(x, self.there, self.there_scales, self.back, self.back_scales)  # type: ignore[no-untyped-call]
        return product if self.bias is None else product + self.bias

    def plain(self) -> nn.Linear:
        """The map as it was."""
        size, width = self.weight.shape
        with torch.device("meta"):
            linear = nn.Linear(width, size, bias=self.bias is not None)
        linear.weight, linear.bias = self.weight, self.bias
        return linear


def uses_fp8(vit: ViT) -> bool:
    """Are the products of the blocks in float8?"""
    return isinstance(vit.blocks[0].mlp.fc1, Fp8Linear)  # type: ignore[union-attr]


def convert_to_fp8(vit: ViT) -> ViT:
    """Multiply in float8 from now on; weights that are loaded later are not seen by it."""
    return _exchanged(vit, nn.Linear, Fp8Linear)


def convert_from_fp8(vit: ViT) -> ViT:
    """Multiply as before."""
    return _exchanged(vit, Fp8Linear, Fp8Linear.plain)


def set_precision(vit: ViT, dtype: torch.dtype, in_fp8: bool, weights: Mapping[str, Tensor]) -> bool:
    """Hold a frozen backbone in these numbers; where they are others than before, its weights are read anew, and True is said."""
    if (vit.dtype, uses_fp8(vit)) == (dtype, in_fp8):
        return False
    convert_from_fp8(vit).to(dtype).load_weights(weights)
    if in_fp8:
        convert_to_fp8(vit)
    return True


def _exchanged(vit: ViT, old: type[nn.Module], make: Any) -> ViT:
    for block in vit.blocks:
        for part, name in PLACES:
            owner = getattr(block, part)
            if isinstance(getattr(owner, name), old):
                setattr(owner, name, make(getattr(owner, name)))
    return vit
