"""Beetles, drawn by this module: twelve species that differ only in the pattern on their wing cases.

Color, size, pose, build and ground vary from beetle to beetle and tell nothing about the species.
The features of a frozen backbone follow them more than the pattern, so no classifier does well on
these features alone (benchmarks/demo.py). Nothing is downloaded or stored: an image follows from its
species and its number, in float64 and without a drawing library, so that it is the same everywhere.

A beetle is drawn in its own coordinates: x across, y from the head to the tip of the wing cases. A
shape is a function of them that is negative inside.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from colorsys import hls_to_rgb

import numpy as np
from numpy.typing import NDArray

from caprompt.data.images import Pixels
from caprompt.data.samples import Samples

__all__ = ["SPECIES", "draw_beetle", "load_beetles"]

SIDE, OVERSAMPLING = 72, 2
TRAIN, TEST = 30, 20  # images per species
Field = NDArray[np.float64]  # one value or color per pixel
Shape = Callable[[Field, Field], Field]
Range = tuple[float, float]
ANY, EARTH_AND_PLANTS = (0.0, 1.0), (0.05, 0.45)  # hues


def load_beetles() -> tuple[Samples, Samples]:
    """Draw training and test samples."""
    return _draw_samples(range(TRAIN)), _draw_samples(range(TRAIN, TRAIN + TEST))


def _draw_samples(numbers: Sequence[int]) -> Samples:
    pairs = [(draw_beetle(species, number), species) for species in SPECIES for number in numbers]
    images, labels = zip(*pairs, strict=True)
    return Samples(images, labels)


# -- patterns on the wing cases, which fill the unit circle; they are symmetric, so x is the distance to the axis ---------


def spots(*centers: tuple[float, float], radius: float) -> Shape:
    """Return spots at these places."""
    return lambda x, y: np.min([np.hypot(x - a, y - b) for a, b in centers], axis=0) - radius


def bands(*heights: float, width: float, slope: float = 0.0) -> Shape:
    """Return bands across both wing cases, straight or like a V."""
    return lambda x, y: np.min([np.abs(y + slope * x - height) for height in heights], axis=0) - width / 2


def stripes(*places: float, width: float) -> Shape:
    """Return stripes along the wing cases."""
    return lambda x, y: np.min([np.abs(x - place) for place in places], axis=0) - width / 2


def rings(*centers: tuple[float, float], radius: float, width: float) -> Shape:
    """Return rings around these places."""
    return lambda x, y: np.abs(spots(*centers, radius=radius)(x, y)) - width / 2


SPECIES: dict[str, Shape] = {
    "two-spotted": spots((0.45, 0.05), radius=0.24),
    "four-spotted": spots((0.42, -0.35), (0.42, 0.35), radius=0.2),
    "six-spotted": spots((0.38, -0.5), (0.52, 0.02), (0.36, 0.52), radius=0.17),
    "ten-spotted": spots((0.25, -0.6), (0.6, -0.3), (0.28, 0.0), (0.6, 0.32), (0.25, 0.6), radius=0.14),
    "one-banded": bands(0.05, width=0.4),
    "two-banded": bands(-0.35, 0.4, width=0.26),
    "three-banded": bands(-0.5, 0.0, 0.5, width=0.19),
    "arrowed": bands(-0.3, 0.3, width=0.24, slope=0.8),
    "two-striped": stripes(0.42, width=0.26),
    "four-striped": stripes(0.22, 0.62, width=0.18),
    "ringed": rings((0.43, 0.0), radius=0.25, width=0.16),
    "four-ringed": rings((0.42, -0.38), (0.42, 0.38), radius=0.19, width=0.13),
}


# -- drawing ------------------------------------------------------------------------------------------------------------


def draw_beetle(species: str, number: int) -> Pixels:
    """Draw a beetle, (SIDE, SIDE, 3); the number determines all that the species leaves open."""
    rng = np.random.default_rng([list(SPECIES).index(species), number])
    side = SIDE * OVERSAMPLING
    down, right = (np.mgrid[:side, :side] + 0.5) * 2 / side - 1
    canvas = _draw_ground(right, down, rng)
    angle, size = rng.uniform(-np.pi, np.pi), rng.uniform(0.4, 0.62)
    right, down = right - rng.uniform(-0.15, 0.15), down - rng.uniform(-0.15, 0.15)
    x = (np.cos(angle) * right + np.sin(angle) * down) / size
    y = (np.cos(angle) * down - np.sin(angle) * right) / size
    _draw_body(canvas, x, y, SPECIES[species], rng)
    small = canvas.reshape(SIDE, OVERSAMPLING, SIDE, OVERSAMPLING, 3).mean(axis=(1, 3))
    small += rng.normal(0, 0.015, small.shape)
    pixels: Pixels = np.rint(255 * small.clip(0, 1)).astype(np.uint8)
    return pixels


def _draw_ground(right: Field, down: Field, rng: np.random.Generator) -> Field:
    """Return a canvas of one color, with light and shade and a few blades of grass."""
    canvas = np.tile(_draw_color(rng, EARTH_AND_PLANTS, (0.35, 0.8), (0.1, 0.5)), (*right.shape, 1))
    for _ in range(3):
        a, b, phase = rng.uniform(-6, 6), rng.uniform(-6, 6), rng.uniform(0, 2 * np.pi)
        canvas += 0.04 * np.sin(a * right + b * down + phase)[..., None]
    for _ in range(rng.integers(3, 8)):
        angle, offset, width = rng.uniform(0, np.pi), rng.uniform(-1, 1), rng.uniform(0.02, 0.12)
        across = np.cos(angle) * right + np.sin(angle) * down + 0.15 * (right**2 - down**2) - offset
        _paint(canvas, np.abs(across) - width, _draw_color(rng, EARTH_AND_PLANTS, (0.25, 0.75), (0.1, 0.5)))
    return canvas


def _draw_body(canvas: Field, x: Field, y: Field, pattern: Shape, rng: np.random.Generator) -> None:
    """Paint limbs, head, thorax and the wing cases with their pattern, light from above."""
    width, length = rng.uniform(0.6, 0.85), rng.uniform(0.95, 1.1)
    dark = _draw_color(rng, ANY, (0.06, 0.2), (0.0, 0.5))
    base, mark = _draw_color_pair(rng)
    _draw_limbs(canvas, np.abs(x), y, width, dark, rng)
    _paint(canvas, np.hypot(x / 0.27, (y + 1.1) / 0.25) - 1, dark)
    thorax = dark if rng.random() < 0.5 else base
    _paint(canvas, np.hypot(x / (0.75 * width), (y + 0.78) / 0.34) - 1, 0.85 * thorax)
    u, v = x / width, (y - 0.2) / length
    wings = np.hypot(u, v) < 1
    u, v = u[wings], v[wings]
    colors = np.where(pattern(np.abs(u), v)[:, None] < 0, mark, base)
    colors[np.abs(u) < 0.025] = 0.5 * base
    canvas[wings] = colors + (0.13 - 0.25 * (u**2 + v**2))[:, None]


def _draw_limbs(canvas: Field, x: Field, y: Field, width: float, color: Field, rng: np.random.Generator) -> None:
    """Paint three pairs of legs and a pair of antennae; x is the distance to the axis of the body."""
    knees, feet, out, forward = rng.uniform(-0.12, 0.12, size=4)
    for hip in (-0.35, 0.1, 0.5):
        knee = (width + 0.22, 2 * hip + knees)
        _paint(canvas, _segment(x, y, (0.3, hip), knee) - 0.045, color)
        _paint(canvas, _segment(x, y, knee, (width + 0.4, knee[1] + 0.2 + feet)) - 0.035, color)
    _paint(canvas, _segment(x, y, (0.1, -1.1), (0.45 + out, -1.55 + forward)) - 0.03, color)


def _segment(x: Field, y: Field, start: tuple[float, float], end: tuple[float, float]) -> Field:
    """Return the distance to a line segment."""
    a, b = end[0] - start[0], end[1] - start[1]
    along = (((x - start[0]) * a + (y - start[1]) * b) / (a * a + b * b)).clip(0, 1)
    return np.hypot(x - start[0] - along * a, y - start[1] - along * b)


def _paint(canvas: Field, shape: Field, color: Field) -> None:
    """Fill the inside of a shape."""
    canvas[shape < 0] = color


def _draw_color(rng: np.random.Generator, hue: Range, lightness: Range, saturation: Range) -> Field:
    return np.array(hls_to_rgb(rng.uniform(*hue), rng.uniform(*lightness), rng.uniform(*saturation)))


def _draw_color_pair(rng: np.random.Generator) -> tuple[Field, Field]:
    """Return the colors of wing cases and pattern: one light and one dark, either way around."""
    light, dark = _draw_color(rng, ANY, (0.5, 0.8), (0.4, 0.95)), _draw_color(rng, ANY, (0.08, 0.3), (0.2, 0.9))
    return (light, dark) if rng.random() < 0.5 else (dark, light)
