"""From pixels to what the network sees: the paper's augmentation for training, a centre crop for the rest.

A transform first decides on a `View` of a picture, then renders it: here with Pillow, one picture at a time; `batched.py` renders
many at once on a GPU.

Bit-equal to torchvision's transforms on Pillow images, given the same random draws. That holds for a crop followed by
a resize; Pillow's `resize(box=...)` looks at pixels outside the box and differs.
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

__all__ = ["Color", "EvalTransform", "TrainTransform", "Transform", "View", "crop_box", "render"]

Color: TypeAlias = tuple[float, float, float]
Box: TypeAlias = tuple[int, int, int, int]


@dataclass(frozen=True)
class View:
    """What is to be seen of a picture: a box of it is resized, a square of the result is cut out, mirrored, brightened."""

    box: Box
    resized: tuple[int, int]  # the box's new width and height
    corner: tuple[int, int]  # left and top of the square in the resized box
    flip: bool = False
    brightness: float = 1.0


class Transform(Protocol):
    """A recipe from pixels (H, W, 3) to the network's input (3, S, S)."""

    @property
    def size(self) -> int:
        """The side S of what comes out."""
        ...

    @property
    def mean(self) -> Color:
        """What is subtracted from each channel, of values in 0..1."""
        ...

    @property
    def std(self) -> Color:
        """What each channel is divided by."""
        ...

    def view(self, width: int, height: int, rng: np.random.Generator, /) -> View:
        """Decide what to see of a picture of this size."""
        ...


@dataclass(frozen=True)
class TrainTransform:
    """A random part of the picture, resized, maybe mirrored, maybe brightened or darkened, normalised.

    `crop_scale` is the part's share of the area, `crop_ratio` its width over its height, `flip` the probability of
    mirroring; the brightness is multiplied by a factor in 1 ± `brightness`.
    """

    size: int
    mean: Color
    std: Color
    crop_scale: tuple[float, float] = (0.08, 1.0)
    crop_ratio: tuple[float, float] = (3 / 4, 4 / 3)
    flip: float = 0.5
    brightness: float = 0.0

    def view(self, width: int, height: int, rng: np.random.Generator) -> View:
        """A different view at every state of `rng`."""
        box = crop_box(width, height, self.crop_scale, self.crop_ratio, rng)
        flip = rng.random() < self.flip
        brightness = rng.uniform(max(0.0, 1 - self.brightness), 1 + self.brightness) if self.brightness else 1.0
        return View(box, (self.size, self.size), (0, 0), flip, brightness)


@dataclass(frozen=True)
class EvalTransform:
    """The middle of the picture, once its short side is `resize` (by default 256 for a `size` of 224), normalised."""

    size: int
    mean: Color
    std: Color
    resize: int | None = None

    def __post_init__(self) -> None:
        if self.resize is not None and self.resize < self.size:
            raise OptionError(f"resize={self.resize} leaves too little for a crop of {self.size}; give at least that")

    def view(self, width: int, height: int, rng: np.random.Generator | None = None) -> View:
        """Always the same view; `rng` is not used."""
        short = self.resize or round(self.size * 256 / 224)
        long = int(short * max(height, width) / min(height, width))
        resized = (short, long) if width <= height else (long, short)
        corner = round((resized[0] - self.size) / 2), round((resized[1] - self.size) / 2)
        return View((0, 0, width, height), resized, corner)


def render(image: Pixels, view: View, recipe: Transform) -> NDArray[np.float32]:
    """A view of one picture (H, W, 3), normalised: (3, S, S)."""
    left, top, right, bottom = view.box
    part = Image.fromarray(image[top:bottom, left:right]).resize(view.resized, Image.Resampling.BICUBIC)
    x, y = view.corner
    if (x, y, *view.resized) != (0, 0, recipe.size, recipe.size):
        part = part.crop((x, y, x + recipe.size, y + recipe.size))
    if view.flip:
        part = part.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
    if view.brightness != 1:
        part = ImageEnhance.Brightness(part).enhance(view.brightness)
    return _normalised(part, recipe.mean, recipe.std)


def crop_box(width: int, height: int, scale: tuple[float, float], ratio: tuple[float, float], rng: np.random.Generator) -> Box:
    """A random part of a picture as (left, top, right, bottom), after torchvision's RandomResizedCrop.

    Ten draws of area and shape; if none fits, the largest central part of an allowed shape.

    >>> crop_box(400, 100, (1.0, 1.0), (1.0, 1.0), np.random.default_rng(0))
    (150, 0, 250, 100)
    """
    for _ in range(10):
        area = width * height * rng.uniform(*scale)
        shape = math.exp(rng.uniform(math.log(ratio[0]), math.log(ratio[1])))
        w, h = round(math.sqrt(area * shape)), round(math.sqrt(area / shape))
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


def _normalised(image: Image.Image, mean: Color, std: Color) -> NDArray[np.float32]:
    values = np.asarray(image).transpose(2, 0, 1).astype(np.float32, order="C")  # (S, S, 3) -> (3, S, S)
    values /= 255
    values -= np.array(mean, np.float32)[:, None, None]
    values /= np.array(std, np.float32)[:, None, None]
    return values
