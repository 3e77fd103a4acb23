"""Tiny generated images."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image


@pytest.fixture
def noise() -> Callable[..., NDArray[np.uint8]]:
    """`noise(seed, height, width)`: a random RGB image, different for each seed."""

    def make(seed: int = 0, height: int = 12, width: int = 10) -> NDArray[np.uint8]:
        return np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)

    return make


@pytest.fixture
def photos(tmp_path: Path, noise: Callable[..., NDArray[np.uint8]]) -> Path:
    """Three classes of four PNG files each: photos/class1, class2 and class10."""
    root = tmp_path / "photos"
    for label in (1, 2, 10):
        folder = root / f"class{label}"
        folder.mkdir(parents=True)
        for number in range(4):
            Image.fromarray(noise(100 * label + number)).save(folder / f"{number}.png")
    return root
