"""Rendering of views for whole batches on a GPU (or a CPU).

Resizing is linear along each axis, so a crop, an antialiased bicubic resize, a second crop and a
horizontal flip are two matmuls with small matrices per image: `rows @ image @ columns.T`. The
matrices contain Pillow's bicubic weights, and values are rounded to integer levels where Pillow
rounds. A photograph rendered here and by Pillow differs by at most two levels of 255, in rare
pixels. (Pillow 13 resizes rows first where that is cheaper; what it clips at 0 and 255 between its
two steps then differs, visibly only on pure noise.)
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache

import torch
from torch import Tensor

from caprompt.data.images import Pixels
from caprompt.data.transforms import Color, Transform, View
from caprompt.utils.devices import has_triton, to_device

__all__ = ["MAX_SHAPE_RATIO", "crop_to_view", "make_resampling_weights", "render_batch"]

#: Weights are multiples of 1 / 2^15. Levels are below 2^8 and no partial sum reaches 2^9, so that float32 holds every sum exactly,
#: in whatever order it is computed: the rendered bits do not depend on the batch.
WEIGHT_STEPS = 2**15
MAX_SHAPE_RATIO = 2  # more elongated images are cropped to what a view needs


def render_batch(pixels: Tensor, views: Sequence[View], transform: Transform) -> Tensor:
    """Render and normalize one view of each image: (B, H, W, 3) uint8 -> (B, 3, S, S) float32."""
    device, stream = pixels.device, _get_stream(pixels.device)
    if any(view is not views[0] and view != views[0] for view in views):
        columns, rows, brightness = _make_matrices(views, transform.size, pixels.shape, device)
    else:
        shared = _get_shared_matrices(views[0], transform.size, tuple(pixels.shape[1:]), device, stream)
        if shared is None:
            return _normalize(_to_planes(pixels), transform, stream)
        columns, rows, brightness = shared
    if has_triton(device):
        from caprompt.data.fused_rendering import render_fused

        _, mean, std = _get_normalization(transform.mean, transform.std, device, stream)
        return render_fused(pixels, columns, rows, brightness, mean, std, WEIGHT_STEPS)
    image = _resample(_to_planes(pixels), columns, rows)
    if any(view.brightness != 1 for view in views):
        image = (image * brightness).floor().clamp(max=255)  # Pillow truncates here
    return _normalize(image, transform, stream)


def _to_planes(pixels: Tensor) -> Tensor:
    """(B, H, W, 3) uint8 -> (B, 3, H, W) float32."""
    return pixels.permute(0, 3, 1, 2).to(torch.float32, memory_format=torch.contiguous_format)


def _normalize(image: Tensor, transform: Transform, stream: int | None) -> Tensor:
    """Scale levels (B, 3, S, S) to 0..1, subtract the mean, divide by the standard deviation."""
    highest, mean, std = _get_normalization(transform.mean, transform.std, image.device, stream)
    return (image / highest).sub_(mean).div_(std)


def _resample(image: Tensor, columns: Tensor, rows: Tensor) -> Tensor:
    """Multiply (B, 3, H, W) by columns (B or 1, S, W) and rows (B or 1, S, H), rounded to levels as Pillow does."""
    count, _, height, width = image.shape
    size = columns.shape[1]
    # One product for three channels, so that `columns` is not copied. `bmm` itself: `matmul` would look for a way to call it.
    narrowed = _round_levels(torch.bmm(image.reshape(count, 3 * height, width), columns.transpose(1, 2).expand(count, width, size)))
    rows = rows.unsqueeze(1).expand(count, 3, size, height).reshape(3 * count, size, height)
    return _round_levels(torch.bmm(rows, narrowed.view(3 * count, height, size))).view(count, 3, size, size)


def _make_matrices(views: Sequence[View], size: int, shape: Sequence[int], device: torch.device) -> tuple[Tensor, Tensor, Tensor]:
    """Return weights for `_resample`, (B, S, W) and (B, S, H), of B views of images (..., H, W, 3), and brightness (B, 1, 1, 1)."""
    numbers = [[*view.box, *view.resized, *view.corner, view.flip, view.brightness] for view in views]
    table = torch.tensor(numbers, dtype=torch.float32)
    box, resized = table[:, :4], table[:, 4:6]
    largest = ((box[:, 2:] - box[:, :2]) / resized).amax(dim=0).tolist()  # on the host, which need not wait for a GPU
    left, top, right, bottom, width, height, x, y, flip, brightness = to_device(table, device).unbind(1)  # (B,) each
    columns = make_resampling_weights(left, right - left, width, x, size, shape[-2], largest[0], flip)  # (B, S, W)
    rows = make_resampling_weights(top, bottom - top, height, y, size, shape[-3], largest[1])  # (B, S, H)
    return columns, rows, brightness[:, None, None, None]


@lru_cache(maxsize=16)
def _get_shared_matrices(
    view: View, size: int, shape: tuple[int, ...], device: torch.device, stream: int | None
) -> tuple[Tensor, Tensor, Tensor] | None:
    """Return what `_make_matrices` does for one view of all images, or None if it is the whole image as it is.

    It is kept for later calls. That of another stream of a GPU may not have been computed yet.
    """
    if shape[:2] == (size, size) and view == View((0, 0, size, size), (size, size), (0, 0)):
        return None
    columns, rows, brightness = _make_matrices([view], size, shape, device)
    return columns.contiguous(), rows.contiguous(), brightness.contiguous()


@lru_cache(maxsize=16)
def _get_normalization(mean: Color, std: Color, device: torch.device, stream: int | None) -> tuple[Tensor, Tensor, Tensor]:
    """Return the highest level, mean and standard deviation, (3, 1, 1) each.

    The level is a tensor because a GPU divides by a number less exactly: it multiplies by the inverse.
    """
    values = to_device(torch.tensor([(255.0,) * 3, mean, std]), device)[:, :, None, None]
    return values[0], values[1], values[2]


def _get_stream(device: torch.device) -> int | None:
    return torch.cuda.current_stream(device).cuda_stream if device.type == "cuda" else None


def crop_to_view(pixels: Pixels, view: View, transform: Transform) -> tuple[Pixels, View]:
    """Return the part of an elongated image that a view needs, and the same view of that part.

    Images of a batch are padded to the largest, so that a single long one would make the batch huge.
    """
    height, width = pixels.shape[:2]
    if max(height, width) <= MAX_SHAPE_RATIO * min(height, width):
        return pixels, view
    left, right = _find_support(view.box[0], view.box[2], view.resized[0], view.corner[0], transform.size)
    top, bottom = _find_support(view.box[1], view.box[3], view.resized[1], view.corner[1], transform.size)
    box = view.box[0] - left, view.box[1] - top, view.box[2] - left, view.box[3] - top
    return pixels[top:bottom, left:right].copy(), replace(view, box=box)  # a copy, so that the rest is not kept


def _find_support(start: int, end: int, resized: int, corner: int, size: int) -> tuple[int, int]:
    """Return the range of source pixels with a weight in `make_resampling_weights`, and a few more.

    >>> _find_support(0, 1000, resized=100, corner=45, size=10)
    (425, 575)
    """
    scale = (end - start) / resized
    margin = 2 * max(scale, 1) + scale / 2
    first, last = start + corner * scale - margin, start + (corner + size) * scale + margin
    return max(start, math.floor(first)), min(end, math.ceil(last))


def make_resampling_weights(
    start: Tensor,
    length: Tensor,
    resized: Tensor,
    corner: Tensor,
    size: int,
    total: int,
    largest_scale: float,
    flip: Tensor | None = None,
) -> Tensor:
    """Compute resampling weights along one axis: (B, size, total).

    They are the weight of each of `total` source pixels in each of `size` output pixels. The
    `length` pixels from `start` are resized to `resized` pixels, of which the `size` from `corner`
    are used, in reverse order where `flip` is not 0; these are (B,). No length is more than
    `largest_scale` times its `resized`.

    >>> one = torch.tensor([1.0])
    >>> make_resampling_weights(one, 2 * one, 2 * one, 0 * one, size=2, total=4, largest_scale=1)[0]
    tensor([[0., 1., 0., 0.],
            [0., 0., 1., 0.]])
    """
    scale = (length / resized)[:, None, None]  # (B, 1, 1)
    stretch = scale.clamp_min(1)  # when downscaling, the kernel is widened by the scale (antialiasing)
    support = 2 * stretch
    output = torch.arange(size, device=start.device, dtype=start.dtype).expand(len(start), size)  # (B, size)
    output = output if flip is None else torch.where(flip[:, None] > 0, size - 1 - output, output)
    center = (output + corner[:, None] + 0.5).unsqueeze(2) * scale  # (B, size, 1)
    first = (center - support + 0.5).trunc().clamp_min(0)
    last = torch.minimum((center + support + 0.5).trunc(), length[:, None, None])
    # Few source pixels have a weight in an output pixel. It is computed for these, and not for all that are 0.
    taps = 2 * math.ceil(2 * max(1.0, largest_scale)) + 1
    source = first + torch.arange(taps, device=start.device)  # (B, size, taps), relative to the box
    weights = _bicubic((source - center + 0.5) / stretch) * (source < last)
    sums = weights.sum(dim=2, keepdim=True, dtype=torch.float64).float()  # in float32, the number of images might change a bit
    weights = (weights / sums * WEIGHT_STEPS).round() / WEIGHT_STEPS
    padded = weights.new_zeros(len(start), size, total + taps)  # the last of them may lie beyond the image, with a weight of 0
    return padded.scatter_(2, (start[:, None, None] + source).long(), weights)[:, :, :total]


def _round_levels(values: Tensor) -> Tensor:
    """Round to integer levels in 0..255, in place."""
    return values.round_().clamp_(0, 255)


def _bicubic(x: Tensor) -> Tensor:
    """Evaluate Keys' cubic kernel with a = -0.5."""
    x = x.abs()
    near = (1.5 * x - 2.5) * x * x + 1
    far = ((-0.5 * x + 2.5) * x - 4) * x + 2
    return torch.where(x < 1, near, torch.where(x < 2, far, torch.zeros_like(x)))
