"""Transforms from pixels to network input.

For training they are the paper's augmentation, for evaluation a center crop. A transform first
chooses a `View` of an image, which is then rendered: here with Pillow, one image at a time;
`gpu_transforms` renders whole batches on a GPU.

Given the same random draws, the result is bit-equal to torchvision's transforms on Pillow images.
That requires a crop followed by a resize; Pillow's `resize(box=...)` reads pixels outside the box
and differs.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageEnhance

from caprompt.data.images import Pixels
from caprompt.errors import OptionError

__all__ = ["Color", "EvalTransform", "TrainTransform", "Transform", "View", "draw_crop_box", "render"]

Color: TypeAlias = tuple[float, float, float]
Box: TypeAlias = tuple[int, int, int, int]


@dataclass(frozen=True)
class View:
    """A rendering of an image: crop `box`, resize it, crop a square, flip it, scale brightness."""

    box: Box
    resized: tuple[int, int]  # width and height of the box after resizing
    corner: tuple[int, int]  # left and top of the square in the resized box
    flip: bool = False
    brightness: float = 1.0


class Transform(Protocol):
    """A mapping from pixels (H, W, 3) to network input (3, S, S)."""

    @property
    def size(self) -> int:
        """Output side S."""
        ...

    @property
    def mean(self) -> Color:
        """Mean of each channel, for values in 0..1."""
        ...

    @property
    def std(self) -> Color:
        """Standard deviation of each channel, for values in 0..1."""
        ...

    def make_view(self, width: int, height: int, rng: np.random.Generator, /) -> View:
        """Choose a view of an image of this size."""
        ...


@dataclass(frozen=True)
class TrainTransform:
    """A random resized crop with random horizontal flip and brightness jitter, normalized.

    `crop_scale` is the crop's share of the area, `crop_ratio` its width over its height, `flip` the
    probability of a flip; the brightness is multiplied by a factor in 1 ± `brightness`.
    """

    size: int
    mean: Color
    std: Color
    crop_scale: tuple[float, float] = (0.08, 1.0)
    crop_ratio: tuple[float, float] = (3 / 4, 4 / 3)
    flip: float = 0.5
    brightness: float = 0.0

    def make_view(self, width: int, height: int, rng: np.random.Generator) -> View:
        """Draw a random view from `rng`."""
        box = draw_crop_box(width, height, self.crop_scale, self.crop_ratio, rng)
        flip = rng.random() < self.flip
        brightness = rng.uniform(max(0.0, 1 - self.brightness), 1 + self.brightness) if self.brightness else 1.0
        return View(box, (self.size, self.size), (0, 0), flip, brightness)


@dataclass(frozen=True)
class EvalTransform:
    """A center crop after resizing the short side to `resize`, normalized.

    The default of `resize` is 256 for a `size` of 224, and in proportion for others.
    """

    size: int
    mean: Color
    std: Color
    resize: int | None = None

    def __post_init__(self) -> None:
        if self.resize is not None and self.resize < self.size:
            raise OptionError(f"resize={self.resize} is too small for a crop of {self.size}; use at least {self.size}")

    def make_view(self, width: int, height: int, rng: np.random.Generator | None = None) -> View:
        """Return the same view at every call; `rng` is not used."""
        short = self.resize or round(self.size * 256 / 224)
        long = int(short * max(height, width) / min(height, width))
        resized = (short, long) if width <= height else (long, short)
        corner = round((resized[0] - self.size) / 2), round((resized[1] - self.size) / 2)
        return View((0, 0, width, height), resized, corner)


def render(image: Pixels, view: View, transform: Transform) -> NDArray[np.float32]:
    """Render and normalize a view of one image: (H, W, 3) -> (3, S, S)."""
    left, top, right, bottom = view.box
    part = Image.fromarray(image[top:bottom, left:right]).resize(view.resized, Image.Resampling.BICUBIC)
    x, y = view.corner
    if (x, y, *view.resized) != (0, 0, transform.size, transform.size):
        part = part.crop((x, y, x + transform.size, y + transform.size))
    if view.flip:
        part = part.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
    if view.brightness != 1:
        part = ImageEnhance.Brightness(part).enhance(view.brightness)
    return _normalize(part, transform.mean, transform.std)


def draw_crop_box(width: int, height: int, scale: tuple[float, float], ratio: tuple[float, float], rng: np.random.Generator) -> Box:
    """Draw a random crop as (left, top, right, bottom), as torchvision's RandomResizedCrop does.

    Area and aspect ratio are drawn up to ten times; if no crop fits, the largest central one of an
    allowed ratio is used.

    >>> draw_crop_box(400, 100, (1.0, 1.0), (1.0, 1.0), np.random.default_rng(0))
    (150, 0, 250, 100)
    """
    for _ in range(10):
        area = width * height * rng.uniform(*scale)
        aspect = math.exp(rng.uniform(math.log(ratio[0]), math.log(ratio[1])))
        w, h = round(math.sqrt(area * aspect)), round(math.sqrt(area / aspect))
        if 0 < w <= width and 0 < h <= height:
            top, left = int(rng.integers(height - h + 1)), int(rng.integers(width - w + 1))
            return left, top, left + w, top + h
    w, h = width, height
    if width / height < ratio[0]:
        h = round(width / ratio[0])
    elif width / height > ratio[1]:
        w = round(height * ratio[1])
    left, top = (width - w) // 2, (height - h) // 2
    return left, top, left + w, top + h


def _normalize(image: Image.Image, mean: Color, std: Color) -> NDArray[np.float32]:
    values = np.asarray(image).transpose(2, 0, 1).astype(np.float32, order="C")  # (S, S, 3) -> (3, S, S)
    values /= 255
    values -= np.array(mean, np.float32)[:, None, None]
    values /= np.array(std, np.float32)[:, None, None]
    return values
