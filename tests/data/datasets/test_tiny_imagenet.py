from __future__ import annotations

import shutil
import zipfile
from pathlib import Path

import pytest
from helpers import square
from PIL import Image

from caprompt.data.datasets.tiny_imagenet import load_tiny_imagenet
from caprompt.data.samples import Samples
from caprompt.errors import DataError

WORDNET_IDS = ["n01443537", "n01629819"]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two classes in the official layout, three training and two validation images each."""
    monkeypatch.setenv("CAPROMPT_DATA", str(tmp_path))
    root = tmp_path / "tiny-imagenet-200"
    (root / "val" / "images").mkdir(parents=True)
    (root / "test" / "images").mkdir(parents=True)
    Image.fromarray(square("red", 0, 8)).save(root / "test" / "images" / "test_0.JPEG")  # its labels are not public
    rows = ""
    for label, name in enumerate(WORDNET_IDS):
        (root / "train" / name / "images").mkdir(parents=True)
        (root / "train" / name / f"{name}_boxes.txt").write_text("boxes")
        for number in range(3):
            Image.fromarray(square("red", number, 8)).save(root / "train" / name / "images" / f"{name}_{number}.JPEG")
        for number in (label, label + 2):
            Image.fromarray(square("blue", number, 8)).save(root / "val" / "images" / f"val_{number}.JPEG")
            rows += f"val_{number}.JPEG\t{name}\t0\t32\t44\t62\n"
    (root / "val" / "val_annotations.txt").write_text(rows)
    (root / "words.txt").write_text("n01443537\tgoldfish, Carassius auratus\nn01629819\tEuropean fire salamander, Salamandra\n")
    return root


def load() -> tuple[Samples, Samples]:
    return load_tiny_imagenet(classes=2, images=(6, 4))


def test_official_layout(folder: Path) -> None:
    train, test = load()
    assert train.counts() == {"n01443537 goldfish": 3, "n01629819 European fire salamander": 3}
    assert test.labels == ("n01443537 goldfish",) * 2 + ("n01629819 European fire salamander",) * 2
    assert test.images[1] == folder / "val" / "images" / "val_2.JPEG"


def test_official_archive(folder: Path) -> None:
    with zipfile.ZipFile(folder.parent / "tiny-imagenet-200.zip", "w") as packed:
        for path in folder.rglob("*"):
            packed.write(path, path.relative_to(folder.parent))
    shutil.rmtree(folder)
    assert (len(load()[0]), len(load()[1])) == (6, 4)


def test_folder_per_class(folder: Path) -> None:
    plain = folder.parent / "tinyimagenet200_64px"
    for part, count in (("train", 3), ("test", 1)):
        for name in ("n01443537 goldfish", "n01629819 European fire salamander"):
            (plain / part / name).mkdir(parents=True)
            for number in range(count):
                Image.fromarray(square("red", number, 8)).save(plain / part / name / f"{number:04d}.png")
    shutil.rmtree(folder)
    train, test = load()
    assert (len(train), len(test), train.classes) == (6, 2, ("n01443537 goldfish", "n01629819 European fire salamander"))
    shutil.rmtree(plain / "test" / "n01443537 goldfish")
    with pytest.raises(DataError, match="class 'n01443537 goldfish' has no test images"):
        load()
    shutil.rmtree(plain / "test")
    with pytest.raises(DataError, match="it has no folder 'val'"):
        load()


def test_missing_class_raises(folder: Path) -> None:
    shutil.rmtree(folder / "train" / WORDNET_IDS[0])
    with pytest.raises(DataError, match="found 3 training images, expected 6"):
        load()
    with pytest.raises(DataError, match="found 1 classes, expected 2"):
        load_tiny_imagenet(classes=2, images=(3, 4))


def test_damaged_annotations_raise(folder: Path) -> None:
    table = folder / "val" / "val_annotations.txt"
    content = table.read_text()
    (folder / "val" / "images" / "val_3.JPEG").unlink()
    with pytest.raises(DataError, match=r"found 3, expected 4, the first missing is 'images/val_3.JPEG'"):
        load()
    table.write_text(content[: len(content) // 2].rsplit("\n", 1)[0] + "\n")
    with pytest.raises(DataError, match="found 2 test images, expected 4"):
        load()
    table.write_text("val_0.JPEG\n")
    with pytest.raises(DataError, match="line 1 of .* is damaged"):
        load()
    table.write_text("val_0.JPEG\tn09999999\n" * 4)
    with pytest.raises(DataError, match="class 'n01443537' has no test images"):
        load()
