from __future__ import annotations

import io
import os
import pickle
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers import SHARED_DATA
from PIL import Image

from caprompt.data.datasets.cifar100 import load_cifar100
from caprompt.data.duplicates import find_duplicates
from caprompt.data.samples import Samples
from caprompt.errors import DataError

NAMES = ["apple", "sea_lion", "bear"]
SMALL: dict[str, Any] = {"classes": 3, "images": (12, 6)}


def write_part(path: Path, count: int, seed: int, **changes: Any) -> None:
    data = np.random.default_rng(seed).integers(0, 256, (count, 3072), dtype=np.uint8)
    content = {
        b"filenames": [f"{number}.png".encode() for number in range(count)],
        b"batch_label": b"training batch 1 of 1",
        b"fine_labels": [number % 3 for number in range(count)],
        b"coarse_labels": [0] * count,
        b"data": data,
    }
    path.write_bytes(pickle.dumps({**content, **{key.encode(): value for key, value in changes.items()}}, protocol=2))


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A small copy in the official layout, in the data folder."""
    monkeypatch.setenv("CAPROMPT_DATA", str(tmp_path))
    root = tmp_path / "cifar-100-python"
    root.mkdir()
    write_part(root / "train", 12, 0)
    write_part(root / "test", 6, 1)
    meta = {b"fine_label_names": [name.encode() for name in NAMES], b"coarse_label_names": [b"things"]}
    (root / "meta").write_bytes(pickle.dumps(meta, protocol=2))
    (root / "file.txt~").touch()  # the official archive has it
    return root


def load() -> tuple[Samples, Samples]:
    return load_cifar100(**SMALL)


def test_pixels_and_labels(folder: Path) -> None:
    train, test = load()
    assert (len(train), len(test)) == (12, 6)
    assert train.labels[:4] == ("apple", "sea_lion", "bear", "apple")
    row = np.random.default_rng(0).integers(0, 256, (12, 3072), dtype=np.uint8)[5]  # 1024 reds, 1024 greens, 1024 blues
    image = train.images[5]
    assert isinstance(image, np.ndarray)
    assert image.shape == (32, 32, 3)
    assert image[2, 7].tolist() == [row[71], row[1024 + 71], row[2048 + 71]]


def test_official_archive(folder: Path) -> None:
    expected = load()[0].digest()
    with tarfile.open(folder.parent / "cifar-100-python.tar.gz", "w:gz") as tar:
        tar.add(folder, "cifar-100-python")
    folder.rename(folder.parent / "away")
    assert load()[0].digest() == expected
    assert (folder / "meta").is_file()


def test_truncated_archive_raises(folder: Path) -> None:
    archive = folder.parent / "cifar-100-python.tar.gz"
    with tarfile.open(archive, "w:gz") as tar:
        tar.add(folder, "cifar-100-python")
    archive.write_bytes(archive.read_bytes()[: archive.stat().st_size // 2])
    folder.rename(folder.parent / "away")
    with pytest.raises(DataError, match=r"cifar-100-python.tar.gz' is damaged or incomplete"):
        load()
    assert not folder.exists()


def test_wrong_counts_raise(folder: Path) -> None:
    with pytest.raises(DataError, match="train' is damaged or incomplete: found 12 images, expected 50,000"):
        load_cifar100(classes=3)
    with pytest.raises(DataError, match="meta' is damaged or incomplete: found 3 class names, expected 100"):
        load_cifar100()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"fine_labels": [0, 1] * 6}, r"class 'bear' has no training images \(found 2 classes, expected 3\)"),
        ({"fine_labels": [0, 1, 3] * 4}, r"4 of its labels are not in 0\.\.2, first 3"),
        ({"fine_labels": [0, 1, -1] * 4}, "4 of its labels"),
        ({"fine_labels": [0]}, "1 labels and an array of uint8"),
        ({"data": np.zeros((12, 3000), np.uint8)}, r"an array of uint8 \(12, 3000\)"),
        ({"data": np.zeros((12, 3072), np.float32)}, "an array of float32"),
        ({"data": [1, 2]}, "it has no 'data'"),
        ({"fine_labels": None}, "it has no 'fine_labels'"),
    ],
)
def test_damaged_content_raises(folder: Path, changes: dict[str, Any], message: str) -> None:
    write_part(folder / "train", 12, 0, **changes)
    with pytest.raises(DataError, match=message):
        load()


def test_missing_or_truncated_file_raises(folder: Path) -> None:
    (folder / "test").write_bytes((folder / "test").read_bytes()[:2000])
    with pytest.raises(DataError, match="test' is damaged or incomplete"):
        load()
    (folder / "test").unlink()
    with pytest.raises(DataError, match="it has no file 'test'"):
        load()


class FolderMaker:
    def __init__(self, path: Path) -> None:
        self.path = str(path)

    def __reduce__(self) -> Any:
        return os.mkdir, (self.path,)


def test_file_with_code_raises_and_does_not_run(folder: Path) -> None:
    write_part(folder / "train", 12, 0, batch_label=FolderMaker(folder / "ran"))
    with pytest.raises(DataError, match=r"train' is refused: .* must not use 'posix.mkdir'"):
        load()
    assert not (folder / "ran").exists()


@pytest.mark.slow
@pytest.mark.skipif(not (SHARED_DATA / "cifar100.npz").is_file(), reason="needs the development data pack ../shared/data")
def test_real_dataset(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    subprocess.run([sys.executable, str(SHARED_DATA / "unpack.py"), "cifar100", "--to", str(tmp_path)], check=True, timeout=300)
    monkeypatch.setenv("CAPROMPT_DATA", str(tmp_path))
    train, test = load_cifar100()
    assert (len(train), len(test)) == (50_000, 10_000)
    assert len(train.classes) == 100
    assert set(train.counts().values()) == {500}
    assert set(test.counts().values()) == {100}
    assert len(find_duplicates(test, train)) == 10, "the published dataset has some photos in both splits"
    with np.load(SHARED_DATA / "cifar100.npz") as pack:
        names = [str(name) for name in pack["classes"]]
        mosaic = np.asarray(Image.open(io.BytesIO(pack["train_042"].tobytes())).convert("RGB"))
    assert train.labels[42 * 500 + 77] == names[42]
    row, column = divmod(77, 25)  # 25 images to a row of the mosaic
    tile = mosaic[32 * row : 32 * row + 32, 32 * column : 32 * column + 32]
    assert np.array_equal(train.images[42 * 500 + 77], tile)
