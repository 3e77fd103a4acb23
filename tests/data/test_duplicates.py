from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image

from caprompt.data import duplicates
from caprompt.data.duplicates import assign_content_ids, find_duplicates
from caprompt.data.sources import read_source

Noise = Callable[..., NDArray[np.uint8]]


def test_equal_pixels_in_any_container(noise: Noise, tmp_path: Path) -> None:
    Image.fromarray(noise(1)).save(tmp_path / "a.png")
    gray = np.full((3, 4), 7, np.uint8)
    images = [noise(1), Image.fromarray(noise(1)), tmp_path / "a.png", noise(2), gray, np.stack([gray] * 3, axis=2)]
    assert assign_content_ids(images) == [0, 0, 0, 3, 4, 4]


def test_only_files_of_equal_size_are_read(photos: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copy(photos / "class1" / "0.png", photos / "class2" / "copy.png")
    files = sorted(photos.rglob("*.png"))
    (photos / "class1" / "odd.png").write_bytes(b"of a unique size")
    hashed: list[Path] = []
    real = duplicates.hash_image
    monkeypatch.setattr(duplicates, "hash_image", lambda image: (hashed.append(image), real(image))[1])
    ids = assign_content_ids([*files, photos / "class1" / "odd.png"])
    assert len(set(ids)) == len(files)  # one file more, one duplicate
    assert ids[files.index(photos / "class2" / "copy.png")] == ids[files.index(photos / "class1" / "0.png")]
    assert photos / "class1" / "odd.png" not in hashed


def test_unreadable_images_are_unique(tmp_path: Path) -> None:
    assert assign_content_ids([tmp_path / "gone.png", tmp_path / "gone.png", np.zeros((2, 2), np.uint8), np.zeros(5)]) == [
        0,
        1,
        2,
        3,
    ]
    assert assign_content_ids([tmp_path / "gone.png", tmp_path / "gone.png"]) == [0, 1]
    assert assign_content_ids([]) == []


def test_find_test_images_in_training_images(photos: Path, tmp_path: Path, noise: Noise) -> None:
    test = tmp_path / "test"
    (test / "class1").mkdir(parents=True)
    shutil.copy(photos / "class2" / "3.png", test / "class1" / "b.png")  # with another label and name
    Image.fromarray(noise(999)).save(test / "class1" / "a.png")
    assert find_duplicates(read_source(test), read_source(photos)) == [1]
    in_memory = read_source(([noise(203), noise(998)], ["x", "y"]))
    assert find_duplicates(in_memory, read_source(photos)) == [0]
    assert find_duplicates(read_source(photos), in_memory) == [7]
