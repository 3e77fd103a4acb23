"""Handwritten digits, 8 x 8 pixels, included in scikit-learn: real images without a download."""

from __future__ import annotations

from collections import Counter

import numpy as np
from PIL import Image

from caprompt.data.images import Pixels
from caprompt.data.samples import Samples

__all__ = ["load_digits"]

NAMES = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
SIDE, MARGIN = 64, 8  # the originals touch their borders; with a margin a crop does not cut strokes off


def load_digits() -> tuple[Samples, Samples]:
    """Load training and test samples, white on black, 64 x 64.

    Every fifth image of a class is a test image.
    """
    from sklearn import datasets

    bunch = datasets.load_digits()
    seen: Counter[int] = Counter()
    train: list[int] = []
    test: list[int] = []
    for index, digit in enumerate(bunch.target.tolist()):
        seen[digit] += 1
        (train if seen[digit] % 5 else test).append(index)
    images = tuple(_enlarge(np.rint(image * (255 / 16)).astype(np.uint8)) for image in bunch.images)
    samples = Samples(images, tuple(NAMES[digit] for digit in bunch.target))
    return samples.select(train), samples.select(test)


def _enlarge(small: Pixels) -> Pixels:
    inner = SIDE - 2 * MARGIN
    large = np.asarray(Image.fromarray(small).resize((inner, inner), Image.Resampling.BICUBIC).convert("RGB"))
    return np.pad(large, ((MARGIN, MARGIN), (MARGIN, MARGIN), (0, 0)))
