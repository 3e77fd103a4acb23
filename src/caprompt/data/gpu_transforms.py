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

import torch
from torch import Tensor

from caprompt.data.images import Pixels
from caprompt.data.transforms import Transform, View
from caprompt.utils.devices import to_device

__all__ = ["MAX_SHAPE_RATIO", "crop_to_view", "make_resampling_weights", "render_batch"]

MAX_SHAPE_RATIO = 2  # more elongated images are cropped to what a view needs


def render_batch(pixels: Tensor, views: Sequence[View], transform: Transform) -> Tensor:
    """Render and normalize one view of each image: (B, H, W, 3) uint8 -> (B, 3, S, S) float32."""
    table = [[*view.box, *view.resized, *view.corner, view.flip, view.brightness] for view in views]
    parameters = to_device(torch.tensor(table, dtype=torch.float32), pixels.device)
    left, top, right, bottom, width, height, x, y, flip, brightness = parameters.unbind(1)  # (B,) each
    columns = make_resampling_weights(left, right - left, width, x, transform.size, pixels.shape[2])  # (B, S, W)
    rows = make_resampling_weights(top, bottom - top, height, y, transform.size, pixels.shape[1])  # (B, S, H)
    columns = torch.where(flip[:, None, None] > 0, columns.flip(1), columns)

    image = pixels.permute(0, 3, 1, 2).float()  # (B, 3, H, W)
    image = _round_levels(image @ columns.transpose(1, 2).unsqueeze(1))  # (B, 3, H, S)
    image = _round_levels(rows.unsqueeze(1) @ image)  # (B, 3, S, S)
    image = (image * brightness[:, None, None, None]).floor().clamp(max=255)  # Pillow truncates here
    mean, std = to_device(torch.tensor([transform.mean, transform.std]), pixels.device)[:, :, None, None].unbind(0)
    return (image / 255 - mean) / std


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


def make_resampling_weights(start: Tensor, length: Tensor, resized: Tensor, corner: Tensor, size: int, total: int) -> Tensor:
    """Compute resampling weights along one axis: (B, size, total).

    They are the weight of each of `total` source pixels in each of `size` output pixels. The
    `length` pixels from `start` are resized to `resized` pixels, of which the `size` from `corner`
    are used; all four are (B,).

    >>> one = torch.tensor([1.0])
    >>> make_resampling_weights(one, 2 * one, 2 * one, 0 * one, size=2, total=4)[0]
    tensor([[0., 1., 0., 0.],
            [0., 0., 1., 0.]])
    """
    scale = (length / resized)[:, None, None]  # (B, 1, 1)
    stretch = scale.clamp_min(1)  # when downscaling, the kernel is widened by the scale (antialiasing)
    support = 2 * stretch
    output = torch.arange(size, device=start.device)[:, None] + corner[:, None, None]  # (B, size, 1)
    center = (output + 0.5) * scale
    source = torch.arange(total, device=start.device) - start[:, None, None]  # (B, 1, total), relative to the box
    first = (center - support + 0.5).trunc().clamp_min(0)
    last = torch.minimum((center + support + 0.5).trunc(), length[:, None, None])
    weights = _bicubic((source - center + 0.5) / stretch) * ((source >= first) & (source < last))
    return weights / weights.sum(dim=2, keepdim=True)


def _round_levels(values: Tensor) -> Tensor:
    """Round to integer levels in 0..255."""
    return values.round().clamp(0, 255)


def _bicubic(x: Tensor) -> Tensor:
    """Evaluate Keys' cubic kernel with a = -0.5."""
    x = x.abs()
    near = (1.5 * x - 2.5) * x * x + 1
    far = ((-0.5 * x + 2.5) * x - 4) * x + 2
    return torch.where(x < 1, near, torch.where(x < 2, far, torch.zeros_like(x)))
