from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image

from caprompt.data import duplicates
from caprompt.data.duplicates import contents, find_duplicates
from caprompt.data.sources import read_source

Noise = Callable[..., NDArray[np.uint8]]


def test_equal_pixels_however_they_are_held(noise: Noise, tmp_path: Path) -> None:
    Image.fromarray(noise(1)).save(tmp_path / "a.png")
    grey = np.full((3, 4), 7, np.uint8)
    pictures = [noise(1), Image.fromarray(noise(1)), tmp_path / "a.png", noise(2), grey, np.stack([grey] * 3, axis=2)]
    assert contents(pictures) == [0, 0, 0, 3, 4, 4]


def test_files_are_read_only_where_their_lengths_agree(photos: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copy(photos / "class1" / "0.png", photos / "class2" / "copy.png")
    files = sorted(photos.rglob("*.png"))
    (photos / "class1" / "odd.png").write_bytes(b"of a length of its own")
    hashed: list[Path] = []
    real = duplicates.hash_image
    monkeypatch.setattr(duplicates, "hash_image", lambda picture: (hashed.append(picture), real(picture))[1])
    numbers = contents([*files, photos / "class1" / "odd.png"])
    assert len(set(numbers)) == len(files)  # one more file, one copy
    assert numbers[files.index(photos / "class2" / "copy.png")] == numbers[files.index(photos / "class1" / "0.png")]
    assert photos / "class1" / "odd.png" not in hashed


def test_what_cannot_be_read_is_like_nothing_else(tmp_path: Path) -> None:
    assert contents([tmp_path / "gone.png", tmp_path / "gone.png", np.zeros((2, 2), np.uint8), np.zeros(5)]) == [0, 1, 2, 3]
    assert contents([tmp_path / "gone.png", tmp_path / "gone.png"]) == [0, 1]
    assert contents([]) == []


def test_test_images_among_the_training_images(photos: Path, tmp_path: Path, noise: Noise) -> None:
    test = tmp_path / "test"
    (test / "class1").mkdir(parents=True)
    shutil.copy(photos / "class2" / "3.png", test / "class1" / "b.png")  # under another label and name
    Image.fromarray(noise(999)).save(test / "class1" / "a.png")
    assert find_duplicates(read_source(test), read_source(photos)) == [1]
    in_memory = read_source(([noise(203), noise(998)], ["x", "y"]))
    assert find_duplicates(in_memory, read_source(photos)) == [0]
    assert find_duplicates(read_source(photos), in_memory) == [7]
