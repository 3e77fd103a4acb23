"""Checkpoints and data sets that cannot be used, as a person meets them: one sentence, exit 2, nothing written."""

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
from helpers import assert_refused, caprompt_here, square, tiny_vit, write_backbone, write_squares
from PIL import Image
from safetensors.torch import save_file


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a backbone and photos, where data sets and backbones are looked for as well."""
    monkeypatch.setenv("CAPROMPT_DATA", str(tmp_path / "data"))
    monkeypatch.setenv("CAPROMPT_BACKBONES", str(tmp_path / "backbones"))
    for name in ("data", "backbones"):
        (tmp_path / name).mkdir()
    write_backbone(tmp_path / "tiny.safetensors")
    write_squares(tmp_path / "photos", ["red", "green"])
    return tmp_path


def refused(place: Path, sentence: str, **flags: object) -> None:
    words = [word for name, value in flags.items() for word in (f"--{name}", value)]
    assert_refused(place, ["run", "--out", "out", *words], sentence, caprompt_here)
    assert not (place / "out").exists()


def test_the_weights_of_another_architecture(place: Path) -> None:
    """A small network's file under the name of a larger one: the first tensor that does not fit, and both shapes."""
    name = "deit_tiny_patch16_224.fb_in1k"
    mismatch = f"is not '{name}': 'cls_token' is (1, 1, 32) in the weights but (1, 1, 192) in this ViT"
    write_backbone(place / "backbones" / f"{name}.safetensors")
    refused(place, mismatch, dataset="photos", backbone=name)
    refused(place, mismatch, dataset="photos", backbone=f"backbones/{name}.safetensors")
    words = ["learn", "pets", "photos", "--backbone", name]
    assert_refused(place, words, mismatch, caprompt_here)


def test_a_tensor_of_another_shape_within_a_file(place: Path) -> None:
    weights = {**tiny_vit().state_dict(), "blocks.1.mlp.fc2.weight": torch.zeros(32, 60)}
    save_file(weights, place / "odd.safetensors", metadata={"caprompt": json.dumps({"heads": 2})})
    mismatch = "'blocks.1.mlp.fc2.weight' is (32, 60) in the weights but (32, 64) in this ViT"
    refused(place, mismatch, dataset="photos", backbone="odd.safetensors")


class MakesFolder:
    def __init__(self, path: Path) -> None:
        self.path = str(path)

    def __reduce__(self) -> Any:
        return os.mkdir, (self.path,)


def test_a_checkpoint_with_code_in_it(place: Path) -> None:
    torch.save({"state_dict": tiny_vit().state_dict(), "hook": MakesFolder(place / "ran")}, place / "code.pth")
    refused(
        place, "'code.pth' holds code besides weights ('posix.mkdir'), which is never run", dataset="photos", backbone="code.pth"
    )
    assert not (place / "ran").exists()


def test_an_archive_that_was_half_downloaded(place: Path) -> None:
    with tarfile.open(place / "data" / "cifar-100-python.tar.gz", "w:gz") as tar:
        for name in ("meta", "train", "test"):
            pixels = np.random.default_rng(0).integers(0, 256, (50, 3072), dtype=np.uint8)
            content = pickle.dumps({b"data": pixels, b"fine_labels": [0] * 50}, protocol=2)
            member = tarfile.TarInfo(f"cifar-100-python/{name}")
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    archive = place / "data" / "cifar-100-python.tar.gz"
    archive.write_bytes(archive.read_bytes()[: archive.stat().st_size // 2])
    refused(place, "cifar-100-python.tar.gz' is damaged or incomplete", dataset="cifar100", backbone="tiny.safetensors")
    assert [path.name for path in (place / "data").iterdir()] == [archive.name]


@pytest.fixture
def imagenet_r(place: Path) -> Path:
    """Two pictures each of 200 classes, with lists that divide them."""
    root = place / "data" / "imagenet-r"
    Image.fromarray(square("red", 0, 8)).save(place / "one.jpg")
    for number in range(200):
        (root / f"n{number:08d}").mkdir(parents=True)
        for name in ("art_0.jpg", "art_1.jpg"):
            shutil.copy(place / "one.jpg", root / f"n{number:08d}" / name)
    for part, name in (("train", "art_0.jpg"), ("test", "art_1.jpg")):
        lines = [f"n{number:08d}/{name}\n" for number in range(200)]
        (place / "data" / f"imagenet-r_{part}.txt").write_text("".join(lines))
    return root


def test_a_list_of_files_that_are_not_there(place: Path, imagenet_r: Path) -> None:
    listed = place / "data" / "imagenet-r_test.txt"
    listed.write_text(listed.read_text() + "n00000007/gone.jpg\n")
    sentence = "found 200, expected 201, the first missing is 'n00000007/gone.jpg'"
    refused(place, sentence, dataset="imagenet-r", backbone="tiny.safetensors")


def test_a_data_set_with_one_class_missing(place: Path, imagenet_r: Path) -> None:
    shutil.rmtree(imagenet_r / "n00000009")
    sentence = "imagenet-r' is damaged or incomplete: found 199 classes, expected 200"
    refused(place, sentence, dataset="imagenet-r", backbone="tiny.safetensors")


def test_photos_with_a_class_in_training_only(place: Path) -> None:
    write_squares(place / "divided" / "train", ["red", "green", "blue"])
    write_squares(place / "divided" / "test", ["red", "green"], start=50)
    refused(place, "class 'blue' is in only one of", dataset="divided", backbone="tiny.safetensors")
