"""What lies between two products of a block, in one kernel on a GPU: scale and shift, residual, norm, scale and shift.

    s = x + factor (p + scale p + shift)              # p is the product, x the residual
    normalize(s) weight + bias, and its scale and shift

Every row is computed by itself, in float32. Needs Triton, which PyTorch's CUDA builds for Linux bring along.

Shapes: B images, N tokens, D width.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor, nn

__all__ = ["Modulation", "apply_quick_gelu", "finish_block_part", "normalize"]

Modulation = tuple[Tensor, Tensor]  # a scale s and a shift t per image, (B, 1, D) each: x becomes x + s x + t

ROWS, WARPS = 4, 4  # rows of a program, one for each warp
ELEMENTS = 4096  # of a program that acts on elements


@triton.jit
def _finish_rows(
    product, residual, factor, scale, shift, weight, bias, next_scale, next_shift, out, normed,
    num_rows, width, tokens, padding, eps, scale_image, shift_image, next_scale_image, next_shift_image,
    ROWS: tl.constexpr, WIDTH: tl.constexpr, HAS_PRODUCT: tl.constexpr, HAS_FACTOR: tl.constexpr, HAS_MODULATION: tl.constexpr,
    HAS_NORM: tl.constexpr, HAS_NEXT_MODULATION: tl.constexpr,
):  # fmt: skip
    """Compute some rows of images that have rows of padding in front; what is normalized there is zero."""
    rows, columns = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS), tl.arange(0, WIDTH)
    image, token = rows // (padding + tokens), rows % (padding + tokens) - padding
    own, in_width = ((rows < num_rows) & (token >= 0))[:, None], (columns < width)[None, :]
    inside = own & in_width
    places = (image * tokens + token)[:, None] * width + columns[None, :]
    values = tl.load(residual + places, mask=inside, other=0.0).to(tl.float32)
    if HAS_PRODUCT:
        update = tl.load(product + places, mask=inside, other=0.0).to(tl.float32)
        if HAS_MODULATION:
            own_scale = tl.load(scale + image[:, None] * scale_image + columns[None, :], mask=inside, other=0.0).to(tl.float32)
            own_shift = tl.load(shift + image[:, None] * shift_image + columns[None, :], mask=inside, other=0.0).to(tl.float32)
            update += own_scale * update + own_shift
        if HAS_FACTOR:
            update *= tl.load(factor + columns, mask=columns < width, other=0.0).to(tl.float32)[None, :]
        values += update
        tl.store(out + places, values.to(out.dtype.element_ty), mask=inside)
    if HAS_NORM:
        mean = tl.sum(values, axis=1) / width
        centered = tl.where(inside, values - mean[:, None], 0.0)
        inverse = 1.0 / tl.sqrt(tl.sum(centered * centered, axis=1) / width + eps)
        result = centered * inverse[:, None] * tl.load(weight + columns, mask=columns < width, other=0.0).to(tl.float32)[None, :]
        result += tl.load(bias + columns, mask=columns < width, other=0.0).to(tl.float32)[None, :]
        if HAS_NEXT_MODULATION:
            own_scale = tl.load(next_scale + image[:, None] * next_scale_image + columns[None, :], mask=inside, other=0.0)
            own_shift = tl.load(next_shift + image[:, None] * next_shift_image + columns[None, :], mask=inside, other=0.0)
            result += own_scale.to(tl.float32) * result + own_shift.to(tl.float32)
        result = tl.where(own, result, 0.0)
        normed_places = rows[:, None] * width + columns[None, :]
        tl.store(normed + normed_places, result.to(normed.dtype.element_ty), mask=(rows < num_rows)[:, None] & in_width)


@triton.jit
def _apply_quick_gelu(x, count, ELEMENTS: tl.constexpr):
    places = tl.program_id(0).to(tl.int64) * ELEMENTS + tl.arange(0, ELEMENTS)
    values = tl.load(x + places, mask=places < count, other=0.0).to(tl.float32)
    tl.store(x + places, (values * tl.sigmoid(1.702 * values)).to(x.dtype.element_ty), mask=places < count)


def finish_block_part(
    product: Tensor,
    residual: Tensor,
    factor: Tensor | None = None,
    modulation: Modulation | None = None,
    norm: nn.LayerNorm | None = None,
    next_modulation: Modulation | None = None,
    padding: int = 0,
) -> tuple[Tensor, Tensor | None]:
    """Return residual + factor * modulate(product), and with a `norm` that of it, changed by the next modulation.

    Product and residual are (B, N, D), `factor` is (D,). In the second result, `padding` rows of zeros are in front:
    (B, padding + N, D).
    """
    product, residual = product.contiguous(), residual.contiguous()
    out = torch.empty_like(residual)
    return out, _launch(product, residual, out, factor, modulation, norm, next_modulation, padding)


def normalize(x: Tensor, norm: nn.LayerNorm, modulation: Modulation | None = None, padding: int = 0) -> Tensor:
    """Apply a norm, then a scale and shift of each image, below rows of zeros: (B, N, D) -> (B, padding + N, D)."""
    normed = _launch(None, x.contiguous(), None, None, None, norm, modulation, padding)
    assert normed is not None
    return normed


def _launch(
    product: Tensor | None,
    residual: Tensor,
    out: Tensor | None,
    factor: Tensor | None,
    modulation: Modulation | None,
    norm: nn.LayerNorm | None,
    next_modulation: Modulation | None,
    padding: int,
) -> Tensor | None:
    """Run `_finish_rows`; for an operand that is absent, the residual is passed, which is then not read for it."""
    images, tokens, width = residual.shape
    normed = None if norm is None else residual.new_empty(images, padding + tokens, width)
    pairs = [*(modulation or (residual, residual)), *(next_modulation or (residual, residual))]
    weights = (residual, residual, 0.0) if norm is None else (norm.weight, norm.bias, norm.eps)
    num_rows = images * (padding + tokens)
    product, factor, result, result_normed = (residual if each is None else each for each in (product, factor, out, normed))
    _finish_rows[(triton.cdiv(num_rows, ROWS),)](
        product, residual, factor, *pairs[:2], *weights[:2], *pairs[2:], result, result_normed,
        num_rows, width, tokens, padding, weights[2], *(each.stride(0) for each in pairs),
        ROWS=ROWS, WIDTH=triton.next_power_of_2(width), HAS_PRODUCT=out is not None, HAS_FACTOR=factor is not residual,
        HAS_MODULATION=modulation is not None, HAS_NORM=norm is not None, HAS_NEXT_MODULATION=next_modulation is not None,
        num_warps=WARPS,
    )  # fmt: skip
    return normed


def apply_quick_gelu(x: Tensor) -> Tensor:
    """Replace x by x * sigmoid(1.702 x), and return it."""
    assert x.is_contiguous()
    _apply_quick_gelu[(triton.cdiv(x.numel(), ELEMENTS),)](x, x.numel(), ELEMENTS=ELEMENTS, num_warps=8)
    return x
