"""Rendering of views on a GPU in two kernels: along rows, then along columns with brightness and normalization.

    out = (rows @ (pixels @ columns) -> levels, brightness, / 255, - mean, / std)

The result has the same bits as the separate operations of PyTorch in `gpu_transforms`: levels stay bytes between the two kernels,
and tensor cores multiply (docs/performance.md has the times). A weight is an integer in units of 1 / `WEIGHT_STEPS`, divided into
two parts that float16 holds exactly, so that all sums are of integers below 2^24 and exact in float32, in whatever order they are
computed. Needs Triton, which PyTorch's CUDA builds for Linux bring along.

Shapes: B images of H x W pixels, S the side of a rendered one.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

__all__ = ["render_fused"]

TILE = {"ROWS": 64, "COLUMNS": 64, "DEPTH": 64}  # of a product, and values that are summed at a time
WARPS = 4
#: Added and subtracted again, it rounds a smaller float32 to an integer, half to even, as torch.round does.
ROUNDING = tl.constexpr(1.5 * 2**23)
#: Arguments that change with the sizes of images, for which no kernel of their own is compiled.
UNSPECIALIZED = (
    *("height", "width", "image_stride", "row_stride", "column_stride", "channel_stride"),
    *("weights_image", "weights_row", "brightness_image"),
)


@triton.jit
def _split_weights(weights, steps):
    """Return weights in units of 1 / steps as two parts that float16 holds: their first eleven bits, and the rest."""
    units = weights * steps
    high = units.to(tl.float16)
    return high, (units - high.to(tl.float32)).to(tl.float16)


@triton.jit
def _to_levels(sums, steps):
    """Return sums in units of 1 / steps as integer levels."""
    levels = (sums / steps + ROUNDING) - ROUNDING  # a power of two: the quotient is exact
    return tl.minimum(tl.maximum(levels, 0.0), 255.0)


@triton.jit
def _find_tile(size, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """Return this program's image, and the rows and columns of its tile of a matrix that has `size` columns."""
    tiles = tl.cdiv(size, COLUMNS)
    rows = tl.program_id(0) // tiles * ROWS + tl.arange(0, ROWS)
    columns = tl.program_id(0) % tiles * COLUMNS + tl.arange(0, COLUMNS)
    return tl.program_id(1).to(tl.int64), rows, columns


@triton.jit(do_not_specialize=UNSPECIALIZED)
def _resample_rows(
    pixels, weights, out, height, width, size, steps, image_stride, row_stride, column_stride, channel_stride,
    weights_image, weights_row, ROWS: tl.constexpr, COLUMNS: tl.constexpr, DEPTH: tl.constexpr,
):  # fmt: skip
    """Compute a tile of all channels of one image: pixels (H, W, 3), weights (S, W) -> levels (3, H, S)."""
    image, rows, columns = _find_tile(size, ROWS, COLUMNS)
    red = tl.zeros((ROWS, COLUMNS), dtype=tl.float32)
    green, blue = red, red
    for start in range(0, width, DEPTH):
        sources = start + tl.arange(0, DEPTH)
        places = weights + image * weights_image + columns[:, None] * weights_row + sources[None, :]
        own = tl.load(places, mask=(columns < size)[:, None] & (sources < width)[None, :], other=0.0)
        high, low = _split_weights(tl.trans(own), steps)
        first = pixels + image * image_stride + rows[:, None] * row_stride + sources[None, :] * column_stride
        inside = (rows < height)[:, None] & (sources < width)[None, :]
        levels = tl.load(first, mask=inside, other=0).to(tl.float16)
        red = tl.dot(levels, low, tl.dot(levels, high, red))
        levels = tl.load(first + channel_stride, mask=inside, other=0).to(tl.float16)
        green = tl.dot(levels, low, tl.dot(levels, high, green))
        levels = tl.load(first + 2 * channel_stride, mask=inside, other=0).to(tl.float16)
        blue = tl.dot(levels, low, tl.dot(levels, high, blue))
    inside = (rows < height)[:, None] & (columns < size)[None, :]
    places = out + image * 3 * height * size + rows[:, None] * size + columns[None, :]
    tl.store(places, _to_levels(red, steps).to(tl.uint8), mask=inside)
    tl.store(places + height * size, _to_levels(green, steps).to(tl.uint8), mask=inside)
    tl.store(places + 2 * height * size, _to_levels(blue, steps).to(tl.uint8), mask=inside)


@triton.jit
def _finish(sums, steps, factor, mean, std):
    """Return normalized values of sums; `factor` is the brightness."""
    levels = tl.minimum(tl.floor(_to_levels(sums, steps) * factor), 255.0)  # Pillow truncates here
    return tl.div_rn(tl.div_rn(levels, 255.0) - mean, std)


@triton.jit(do_not_specialize=UNSPECIALIZED)
def _resample_columns(
    levels, weights, brightness, mean, std, out, height, size, steps, weights_image, weights_row, brightness_image,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, DEPTH: tl.constexpr,
):  # fmt: skip
    """Compute a tile of all channels of one image: weights (S, H), levels (3, H, S) -> normalized (3, S, S)."""
    image, rows, columns = _find_tile(size, ROWS, COLUMNS)
    red = tl.zeros((ROWS, COLUMNS), dtype=tl.float32)
    green, blue = red, red
    for start in range(0, height, DEPTH):
        sources = start + tl.arange(0, DEPTH)
        places = weights + image * weights_image + rows[:, None] * weights_row + sources[None, :]
        own = tl.load(places, mask=(rows < size)[:, None] & (sources < height)[None, :], other=0.0)
        high, low = _split_weights(own, steps)
        first = levels + image * 3 * height * size + sources[:, None] * size + columns[None, :]
        inside = (sources < height)[:, None] & (columns < size)[None, :]
        own_levels = tl.load(first, mask=inside, other=0).to(tl.float16)
        red = tl.dot(low, own_levels, tl.dot(high, own_levels, red))
        own_levels = tl.load(first + height * size, mask=inside, other=0).to(tl.float16)
        green = tl.dot(low, own_levels, tl.dot(high, own_levels, green))
        own_levels = tl.load(first + 2 * height * size, mask=inside, other=0).to(tl.float16)
        blue = tl.dot(low, own_levels, tl.dot(high, own_levels, blue))
    inside = (rows < size)[:, None] & (columns < size)[None, :]
    places = out + image * 3 * size * size + rows[:, None] * size + columns[None, :]
    factor = tl.load(brightness + image * brightness_image)
    tl.store(places, _finish(red, steps, factor, tl.load(mean), tl.load(std)), mask=inside)
    tl.store(places + size * size, _finish(green, steps, factor, tl.load(mean + 1), tl.load(std + 1)), mask=inside)
    tl.store(places + 2 * size * size, _finish(blue, steps, factor, tl.load(mean + 2), tl.load(std + 2)), mask=inside)


def render_fused(
    pixels: Tensor, columns: Tensor, rows: Tensor, brightness: Tensor, mean: Tensor, std: Tensor, weight_steps: int
) -> Tensor:
    """Render images (B, H, W, 3) uint8 with weights columns (B or 1, S, W) and rows (B or 1, S, H): (B, 3, S, S) float32.

    Weights are multiples of 1 / `weight_steps`, a power of two up to 2^15. `brightness` has B or 1 factors, `mean` and `std` three
    values each.
    """
    count, height, width, _ = pixels.shape
    size = columns.shape[1]
    assert columns.stride(2) == rows.stride(2) == 1
    narrowed = pixels.new_empty(count, 3, height, size)
    out = torch.empty(count, 3, size, size, device=pixels.device)
    by_row, by_column = (triton.cdiv(length, TILE["ROWS"]) * triton.cdiv(size, TILE["COLUMNS"]) for length in (height, size))
    _resample_rows[(by_row, count)](
        pixels, columns, narrowed, height, width, size, float(weight_steps), *pixels.stride(),
        _get_image_stride(columns), columns.stride(1), **TILE, num_warps=WARPS,
    )  # fmt: skip
    _resample_columns[(by_column, count)](
        narrowed, rows, brightness, mean, std, out, height, size, float(weight_steps),
        _get_image_stride(rows), rows.stride(1), _get_image_stride(brightness), **TILE, num_warps=WARPS,
    )  # fmt: skip
    return out


def _get_image_stride(operand: Tensor) -> int:
    """Return by how much the operands of two images lie apart: 0 if they share one."""
    return operand.stride(0) if len(operand) > 1 else 0
