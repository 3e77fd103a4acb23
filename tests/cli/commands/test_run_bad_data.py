"""`caprompt run` on unusable weights files and datasets: one sentence, exit status 2, nothing written."""

from __future__ import annotations

import io
import json
import os
import pickle
import shutil
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers import assert_refused, caprompt_in_process, square, tiny_vit, write_backbone, write_squares
from PIL import Image
from safetensors.torch import save_file


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a folder with a backbone and photos, which is searched for datasets and backbones too."""
    monkeypatch.setenv("CAPROMPT_DATA", str(tmp_path / "data"))
    monkeypatch.setenv("CAPROMPT_BACKBONES", str(tmp_path / "backbones"))
    for name in ("data", "backbones"):
        (tmp_path / name).mkdir()
    write_backbone(tmp_path / "tiny.safetensors")
    write_squares(tmp_path / "photos", ["red", "green"])
    return tmp_path


def assert_run_refused(folder: Path, sentence: str, **flags: object) -> None:
    words = [word for name, value in flags.items() for word in (f"--{name}", value)]
    assert_refused(folder, ["run", "--out", "out", *words], sentence, caprompt_in_process)
    assert not (folder / "out").exists()


def test_weights_of_another_architecture(folder: Path) -> None:
    """The file of a small network under the name of a larger one: the message names the first mismatched tensor and both shapes."""
    name = "deit_tiny_patch16_224.fb_in1k"
    mismatch = f"is not '{name}': 'cls_token' is (1, 1, 32) in the weights but (1, 1, 192) in this ViT"
    write_backbone(folder / "backbones" / f"{name}.safetensors")
    assert_run_refused(folder, mismatch, dataset="photos", backbone=name)
    assert_run_refused(folder, mismatch, dataset="photos", backbone=f"backbones/{name}.safetensors")
    words = ["learn", "pets", "photos", "--backbone", name]
    assert_refused(folder, words, mismatch, caprompt_in_process)


def test_tensor_of_another_shape(folder: Path) -> None:
    weights = {**tiny_vit().state_dict(), "blocks.1.mlp.fc2.weight": torch.zeros(32, 60)}
    save_file(weights, folder / "odd.safetensors", metadata={"caprompt": json.dumps({"heads": 2})})
    mismatch = "'blocks.1.mlp.fc2.weight' is (32, 60) in the weights but (32, 64) in this ViT"
    assert_run_refused(folder, mismatch, dataset="photos", backbone="odd.safetensors")


class MakesFolder:
    """Create a folder when unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = str(path)

    def __reduce__(self) -> Any:
        return os.mkdir, (self.path,)


def test_checkpoint_with_code_in_it(folder: Path) -> None:
    torch.save({"state_dict": tiny_vit().state_dict(), "hook": MakesFolder(folder / "ran")}, folder / "code.pth")
    assert_run_refused(
        folder, "'code.pth' holds code besides weights ('posix.mkdir'), which is never run", dataset="photos", backbone="code.pth"
    )
    assert not (folder / "ran").exists()


def test_archive_that_was_half_downloaded(folder: Path) -> None:
    with tarfile.open(folder / "data" / "cifar-100-python.tar.gz", "w:gz") as tar:
        for name in ("meta", "train", "test"):
            pixels = np.random.default_rng(0).integers(0, 256, (50, 3072), dtype=np.uint8)
            content = pickle.dumps({b"data": pixels, b"fine_labels": [0] * 50}, protocol=2)
            member = tarfile.TarInfo(f"cifar-100-python/{name}")
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    archive = folder / "data" / "cifar-100-python.tar.gz"
    archive.write_bytes(archive.read_bytes()[: archive.stat().st_size // 2])
    assert_run_refused(folder, "cifar-100-python.tar.gz' is damaged or incomplete", dataset="cifar100", backbone="tiny.safetensors")
    assert [path.name for path in (folder / "data").iterdir()] == [archive.name]


@pytest.fixture
def imagenet_r(folder: Path) -> Path:
    """Write two images of each of 200 classes, and lists that split them."""
    root = folder / "data" / "imagenet-r"
    Image.fromarray(square("red", 0, 8)).save(folder / "one.jpg")
    for number in range(200):
        (root / f"n{number:08d}").mkdir(parents=True)
        for name in ("art_0.jpg", "art_1.jpg"):
            shutil.copy(folder / "one.jpg", root / f"n{number:08d}" / name)
    for part, name in (("train", "art_0.jpg"), ("test", "art_1.jpg")):
        lines = [f"n{number:08d}/{name}\n" for number in range(200)]
        (folder / "data" / f"imagenet-r_{part}.txt").write_text("".join(lines))
    return root


def test_split_list_with_a_missing_file(folder: Path, imagenet_r: Path) -> None:
    listed = folder / "data" / "imagenet-r_test.txt"
    listed.write_text(listed.read_text() + "n00000007/gone.jpg\n")
    sentence = "found 200, expected 201, the first missing is 'n00000007/gone.jpg'"
    assert_run_refused(folder, sentence, dataset="imagenet-r", backbone="tiny.safetensors")


def test_dataset_with_a_missing_class(folder: Path, imagenet_r: Path) -> None:
    shutil.rmtree(imagenet_r / "n00000009")
    sentence = "imagenet-r' is damaged or incomplete: found 199 classes, expected 200"
    assert_run_refused(folder, sentence, dataset="imagenet-r", backbone="tiny.safetensors")


def test_class_without_test_images(folder: Path) -> None:
    write_squares(folder / "split" / "train", ["red", "green", "blue"])
    write_squares(folder / "split" / "test", ["red", "green"], start=50)
    assert_run_refused(folder, "class 'blue' is in only one of", dataset="split", backbone="tiny.safetensors")
