from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import pytest
from helpers import quick_options, square, squares
from numpy.typing import NDArray
from PIL import Image

from caprompt import ContinualClassifier

TASKS = (("red", "green"), ("blue", "yellow", "cyan"), ("white",))
Teach = Callable[..., ContinualClassifier]
ORIENTATION = 0x0112  # EXIF tag


@pytest.fixture(scope="session")
def teach(backbone: Path) -> Teach:
    """Return a function that teaches a method three tasks of colored squares."""

    def learn(method: str, **options: object) -> ContinualClassifier:
        chosen: Mapping[str, object] = {**quick_options(method), **options}
        model = ContinualClassifier(method, backbone, device="cpu", **chosen)  # type: ignore[arg-type]
        for task in TASKS:
            model.learn(squares(task))
        return model

    return learn


@pytest.fixture(scope="session")
def ncm(teach: Teach) -> ContinualClassifier:
    """Return a model that is quick to export."""
    return teach("ncm")


@pytest.fixture(scope="session")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder of images of every kind: gray, transparent, rotated by EXIF, small, large, wide and tall."""
    folder = tmp_path_factory.mktemp("photos")
    exif = Image.Exif()
    exif[ORIENTATION] = 6
    large = Image.fromarray(square("cyan", 4, size=200))
    for label in ("red", "green", "blue", "yellow", "cyan"):
        (folder / label).mkdir()
    Image.fromarray(square("red", 70)).save(folder / "red" / "plain.png")
    Image.fromarray(square("red", 71)).convert("L").save(folder / "red" / "gray.png")
    _fade(square("green", 72, size=33)).save(folder / "green" / "transparent.png")
    Image.fromarray(square("blue", 73, size=48)[:, :30]).save(folder / "blue" / "rotated.jpg", quality=95, exif=exif)
    Image.fromarray(square("yellow", 74, size=9)).save(folder / "yellow" / "small.png")
    large.save(folder / "cyan" / "large.png")
    large.crop((0, 0, 200, 60)).save(folder / "cyan" / "wide.png")
    large.crop((0, 0, 60, 200)).save(folder / "cyan" / "tall.png")
    return folder


def _fade(image: NDArray[np.uint8]) -> Image.Image:
    alpha = np.tile(np.linspace(255, 60, image.shape[1]), (image.shape[0], 1)).astype(np.uint8)
    return Image.fromarray(np.dstack([image, alpha]))
