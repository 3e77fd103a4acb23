from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
from helpers import read_tree, write_squares
from PIL import Image

from caprompt.data.datasets.folder_copy import select_images, write_folders
from caprompt.data.datasets.registry import load_dataset
from caprompt.data.images import decode
from caprompt.errors import InputError


def test_arrays_become_files_with_the_same_pixels(tmp_path: Path) -> None:
    digits = select_images(load_dataset("digits"), ["six"], per_class=2)
    write_folders(digits, tmp_path / "photos")
    copy = load_dataset(tmp_path / "photos")
    for original, copied in ((digits.train, copy.train), (digits.test, copy.test)):
        assert copied.labels == original.labels == ("six", "six")
        assert all(np.array_equal(decode(one), decode(other)) for one, other in zip(original.images, copied.images, strict=True))


def test_files_are_copied_byte_by_byte_also_into_an_empty_folder(tmp_path: Path) -> None:
    write_squares(tmp_path / "mine" / "train", ["red"], each=2)
    (tmp_path / "mine" / "test" / "red").mkdir(parents=True)
    Image.new("RGB", (9, 9)).save(tmp_path / "mine" / "test" / "red" / "a.JPG")
    (tmp_path / "copy").mkdir()
    write_folders(load_dataset(tmp_path / "mine"), tmp_path / "copy")
    before, after = read_tree(tmp_path / "mine"), read_tree(tmp_path / "copy")
    assert sorted(after) == ["test/red/0001.jpg", "train/red/0001.png", "train/red/0002.png"]
    assert sorted(after.values()) == sorted(before.values())


def test_nothing_is_left_of_a_copy_that_fails(tmp_path: Path) -> None:
    write_squares(tmp_path / "mine" / "train", ["red"])
    write_squares(tmp_path / "mine" / "test", ["red"], start=9)
    dataset = load_dataset(tmp_path / "mine")
    shutil.rmtree(tmp_path / "mine" / "test")
    with pytest.raises(FileNotFoundError):
        write_folders(dataset, tmp_path / "copy")
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]


def test_a_folder_with_files_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for path in (tmp_path, tmp_path / "file"):
        with pytest.raises(InputError, match="not an empty folder"):
            write_folders(load_dataset("digits"), path)
