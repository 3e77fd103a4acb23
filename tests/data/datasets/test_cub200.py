from __future__ import annotations

import shutil
import tarfile
from pathlib import Path

import pytest
from helpers import square
from PIL import Image

from caprompt.data.datasets.cub200 import load_cub200
from caprompt.data.samples import Samples
from caprompt.errors import DataError

CLASSES = ["001.Black_footed_Albatross", "002.Laysan_Albatross", "010.Red_winged_Blackbird"]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Three classes of four images in the official layout, the first two of each for the test."""
    monkeypatch.setenv("CAPROMPT_DATA", str(tmp_path))
    root = tmp_path / "CUB_200_2011"
    tables: dict[str, str] = {"classes": "", "images": "", "image_class_labels": "", "train_test_split": ""}
    number = 0
    for label, name in enumerate(CLASSES, start=1):
        tables["classes"] += f"{label} {name}\n"
        (root / "images" / name).mkdir(parents=True)
        for position in range(4):
            number += 1
            file = f"{name}/{name[4:]}_{position:04d}_{number}.jpg"
            Image.fromarray(square("blue", number, 8)).save(root / "images" / file)
            tables["images"] += f"{number} {file}\n"
            tables["image_class_labels"] += f"{number} {label}\n"
            tables["train_test_split"] += f"{number} {int(position >= 2)}\n"
    for table, text in tables.items():
        (root / f"{table}.txt").write_text(text)
    return root


def load() -> tuple[Samples, Samples]:
    return load_cub200(classes=3, images=(6, 6))


def test_official_split(folder: Path) -> None:
    train, test = load()
    assert train.counts() == test.counts() == dict.fromkeys(CLASSES, 2)
    assert test.images[0] == folder / "images" / CLASSES[0] / "Black_footed_Albatross_0000_1.jpg"
    assert train.labels == tuple(name for name in CLASSES for _ in range(2))


def test_official_archive(folder: Path) -> None:
    (folder.parent / "attributes.txt").touch()
    with tarfile.open(folder.parent / "CUB_200_2011.tgz", "w:gz") as tar:
        tar.add(folder.parent / "attributes.txt", "attributes.txt")
        tar.add(folder, "CUB_200_2011")
    shutil.rmtree(folder)
    assert len(load()[0]) == 6


def test_truncated_archive_raises(folder: Path) -> None:
    archive = folder.parent / "CUB_200_2011.tgz"
    with tarfile.open(archive, "w:gz") as tar:
        tar.add(folder, "CUB_200_2011")
    archive.write_bytes(archive.read_bytes()[: archive.stat().st_size // 2])
    shutil.rmtree(folder)
    with pytest.raises(DataError, match="CUB_200_2011.tgz' is damaged or incomplete"):
        load()


def test_missing_class_raises(folder: Path) -> None:
    shutil.rmtree(folder / "images" / CLASSES[1])
    with pytest.raises(
        DataError, match=r"images.txt' lists images .*: found 8, expected 12, the first missing is 'images/002.Laysan"
    ):
        load()


def test_wrong_counts_raise(folder: Path) -> None:
    with pytest.raises(DataError, match="classes.txt' is damaged or incomplete: found 3 classes, expected 200"):
        load_cub200()
    with pytest.raises(DataError, match="images.txt' is damaged or incomplete: found 12 images, expected 11,788"):
        load_cub200(classes=3)
    with pytest.raises(DataError, match="found 6 training images, expected 5"):
        load_cub200(classes=3, images=(5, 7))


@pytest.mark.parametrize(
    ("table", "old", "new", "message"),
    [
        ("image_class_labels", "12 3\n", "", "found 11 rows, expected 12"),
        ("train_test_split", "12 1\n", "12 2\n", "disagree about ID '2'"),
        ("image_class_labels", "12 3\n", "12 9\n", "disagree about ID '9'"),
        ("train_test_split", "12 1\n", "13 1\n", "disagree about ID '12'"),
        ("image_class_labels", "12 3\n", "11 3\n", "line 12 of .* is damaged: '11 3'"),
        ("images", "1 001.", "1 ../001.", "line 1 of .* is damaged"),
        ("classes", "2 002.Laysan_Albatross", "2", "line 2 of .* is damaged"),
    ],
)
def test_damaged_tables_raise(folder: Path, table: str, old: str, new: str, message: str) -> None:
    path = folder / f"{table}.txt"
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))
    with pytest.raises(DataError, match=message):
        load()


def test_class_without_test_images_raises(folder: Path) -> None:
    path = folder / "train_test_split.txt"
    path.write_text(path.read_text().replace("1 0\n2 0\n", "1 1\n2 1\n", 1))
    with pytest.raises(DataError, match=r"class '001.Black_footed_Albatross' has no test images \(found 2 classes, expected 3\)"):
        load_cub200(classes=3, images=(8, 4))


def test_missing_table_raises(folder: Path) -> None:
    (folder / "train_test_split.txt").unlink()
    with pytest.raises(DataError, match="it has no file 'train_test_split.txt'"):
        load()
