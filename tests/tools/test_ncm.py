from __future__ import annotations

import json
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch
from helpers import ROOT, write_squares
from PIL import Image

from caprompt.data.sources import read_source

COLORS = ["red", "green", "blue"]


@pytest.fixture
def ncm(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(ROOT / "tools"))
    monkeypatch.delitem(sys.modules, "ncm", raising=False)
    import ncm

    return ncm


def test_nearest_mean_accuracy_compares_directions(ncm: ModuleType) -> None:
    train, labels = torch.tensor([[1.0, 0.1], [9.0, 0.0], [0.0, 2.0]]), torch.tensor([0, 0, 1])
    test = torch.tensor([[0.2, 0.1], [0.3, 5.0]])
    assert ncm.nearest_mean_accuracy(train, labels, test, torch.tensor([0, 1])) == 100
    assert ncm.nearest_mean_accuracy(train, labels, test, torch.tensor([1, 1])) == 50


def test_load_images_returns_the_pixels_of_square_images_resized(ncm: ModuleType, tmp_path: Path) -> None:
    samples = read_source(write_squares(tmp_path, COLORS, each=2))
    images = ncm.load_images(samples, 16)
    assert (images.shape, images.dtype) == ((6, 3, 16, 16), torch.uint8)
    for image, path in zip(images, samples.images, strict=True):
        assert isinstance(path, Path)
        with Image.open(path) as file:
            expected = np.asarray(file.convert("RGB").resize((16, 16), Image.Resampling.BICUBIC))
        assert np.array_equal(image.permute(1, 2, 0).numpy(), expected)
    assert ncm.encode_labels(samples, samples.classes).tolist() == [0, 0, 1, 1, 2, 2]


def test_main_prints_a_row_per_backbone_and_writes_json(
    ncm: ModuleType, backbone: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    images, result = tmp_path / "images", tmp_path / "results" / "ncm.json"
    write_squares(images / "train", COLORS, each=6)
    write_squares(images / "test", [*COLORS, "cyan"], each=3, start=100)  # a class that is not in train/ is left out
    ncm.main([f"--images={images}", f"--backbone={backbone}", "--random", f"--json={result}", "--device=cpu"])
    assert len(capsys.readouterr().out.splitlines()) == 3
    trained, random = json.loads(result.read_text())["results"]
    assert (trained["backbone"], random["backbone"]) == ("tiny", "random weights (tiny)")
    assert (trained["train_images"], trained["test_images"], trained["classes"]) == (18, 9, 3)
    assert 0 <= trained["ncm_accuracy"] <= 100
