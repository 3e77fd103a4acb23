"""Views of many pictures at once, as batched operations on a GPU (or a CPU).

Resizing is linear along each axis, so a crop, a bicubic resize with antialiasing, a second crop and a mirroring are two products
with small matrices per picture: `rows @ picture @ columns.T`. The matrices hold Pillow's own bicubic weights, and values are
rounded to whole levels where Pillow rounds. A photograph rendered here and by Pillow differs by at most two levels of 255, in rare
pixels. (Pillow 13 resizes rows first where that is cheaper; what it cuts off at 0 and 255 between its two steps then differs, which
is seen on pure noise only.)
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from caprompt.data.transforms import Transform, View
from caprompt.utils.devices import to_device

__all__ = ["render_batch", "resampling"]


def render_batch(pixels: Tensor, views: Sequence[View], recipe: Transform) -> Tensor:
    """A view of each picture, normalised: (B, H, W, 3) bytes -> (B, 3, S, S) as float32."""
    table = [[*view.box, *view.resized, *view.corner, view.flip, view.brightness] for view in views]
    numbers = to_device(torch.tensor(table, dtype=torch.float32), pixels.device)
    left, top, right, bottom, width, height, x, y, flip, brightness = numbers.unbind(1)  # (B,) each
    columns = resampling(left, right - left, width, x, recipe.size, pixels.shape[2])  # (B, S, W)
    rows = resampling(top, bottom - top, height, y, recipe.size, pixels.shape[1])  # (B, S, H)
    columns = torch.where(flip[:, None, None] > 0, columns.flip(1), columns)

    picture = pixels.permute(0, 3, 1, 2).float()  # (B, 3, H, W)
    picture = levels(picture @ columns.transpose(1, 2).unsqueeze(1))  # (B, 3, H, S)
    picture = levels(rows.unsqueeze(1) @ picture)  # (B, 3, S, S)
    picture = (picture * brightness[:, None, None, None]).floor().clamp(max=255)  # Pillow cuts off the fraction
    mean, std = to_device(torch.tensor([recipe.mean, recipe.std]), pixels.device)[:, :, None, None].unbind(0)
    return (picture / 255 - mean) / std


def levels(values: Tensor) -> Tensor:
    """The nearest whole levels in 0..255."""
    return values.round().clamp(0, 255)


def resampling(start: Tensor, length: Tensor, resized: Tensor, corner: Tensor, size: int, total: int) -> Tensor:
    """Along one axis, how much each of `total` source pixels gives to each of `size` output pixels: (B, size, total).

    The `length` pixels from `start` on are resized to `resized` pixels, of which those from `corner` on are wanted; all are (B,).

    >>> one = torch.tensor([1.0])
    >>> resampling(one, 2 * one, 2 * one, 0 * one, size=2, total=4)[0]
    tensor([[0., 1., 0., 0.],
            [0., 0., 1., 0.]])
    """
    scale = (length / resized)[:, None, None]  # (B, 1, 1)
    stretch = scale.clamp_min(1)  # when shrinking, the kernel is as wide as the pixels that fall together
    support = 2 * stretch
    output = torch.arange(size, device=start.device)[:, None] + corner[:, None, None]  # (B, size, 1)
    centre = (output + 0.5) * scale
    source = torch.arange(total, device=start.device) - start[:, None, None]  # (B, 1, total), within the box
    first = (centre - support + 0.5).trunc().clamp_min(0)
    last = torch.minimum((centre + support + 0.5).trunc(), length[:, None, None])
    weights = bicubic((source - centre + 0.5) / stretch) * ((source >= first) & (source < last))
    return weights / weights.sum(dim=2, keepdim=True)


def bicubic(x: Tensor) -> Tensor:
    """Keys' cubic kernel with a = -0.5."""
    x = x.abs()
    near = (1.5 * x - 2.5) * x * x + 1
    far = ((-0.5 * x + 2.5) * x - 4) * x + 2
    return torch.where(x < 1, near, torch.where(x < 2, far, torch.zeros_like(x)))
