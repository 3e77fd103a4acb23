"""Handwritten digits, 8 x 8 pixels, that come with scikit-learn: real images without a download."""

from __future__ import annotations

from collections import Counter

import numpy as np
from PIL import Image

from caprompt.data.images import Pixels
from caprompt.data.samples import Samples

__all__ = ["load_digits"]

NAMES = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
SIDE, MARGIN = 64, 8  # the small originals touch their borders; with a margin, a crop does not cut a seven's bar off


def load_digits() -> tuple[Samples, Samples]:
    """Training and test images, white on black, 64 x 64; every fifth image of each class is a test image."""
    from sklearn import datasets

    bunch = datasets.load_digits()
    seen: Counter[int] = Counter()
    train: list[int] = []
    test: list[int] = []
    for position, digit in enumerate(bunch.target.tolist()):
        seen[digit] += 1
        (train if seen[digit] % 5 else test).append(position)
    pictures = tuple(_enlarged(np.rint(image * (255 / 16)).astype(np.uint8)) for image in bunch.images)
    samples = Samples(pictures, tuple(NAMES[digit] for digit in bunch.target))
    return samples.select(train), samples.select(test)


def _enlarged(small: Pixels) -> Pixels:
    inner = SIDE - 2 * MARGIN
    large = np.asarray(Image.fromarray(small).resize((inner, inner), Image.Resampling.BICUBIC).convert("RGB"))
    return np.pad(large, ((MARGIN, MARGIN), (MARGIN, MARGIN), (0, 0)))
