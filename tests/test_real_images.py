"""A real checkpoint on real images: DeiT-Ti with its own head must separate the classes of Tiny-ImageNet."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch
from helpers import SHARED_DATA
from PIL import Image
from safetensors.torch import load_file

from caprompt.backbones.weights import load_backbone
from caprompt.data import read_source

WEIGHTS, ARCHIVE = SHARED_DATA / "deit_tiny_patch16_224.safetensors", SHARED_DATA / "tinyimagenet200_64px.npz"
PER_CLASS = 6


def load_pixels(path: Path, size: int) -> torch.Tensor:
    with Image.open(path) as image:
        enlarged = np.array(image.convert("RGB").resize((size, size), Image.Resampling.BICUBIC))
    return torch.from_numpy(enlarged).permute(2, 0, 1) / 255


@pytest.mark.slow
@pytest.mark.skipif(
    not (WEIGHTS.is_file() and ARCHIVE.is_file()), reason="needs the development data pack ../shared/data next to the repository"
)
def test_deit_tiny_separates_the_classes_of_tiny_imagenet(tmp_path: Path) -> None:
    """Each class's most frequent prediction, of 1,000, should be its own: of every fourth class it is for 45 of 50."""
    arguments = [str(SHARED_DATA / "unpack.py"), ARCHIVE.stem, "--to", str(tmp_path), "--per-class", "1"]
    subprocess.run([sys.executable, *arguments], check=True, timeout=300)
    samples = read_source(tmp_path / ARCHIVE.stem / "test")
    backbone, tensors = load_backbone(WEIGHTS), load_file(WEIGHTS)
    vit, size = backbone.build(), backbone.config.image_size
    head, bias = tensors["head.weight"].float(), tensors["head.bias"].float()
    mean, std = (torch.tensor(values)[:, None, None] for values in (backbone.mean, backbone.std))
    most_frequent = []
    for name in samples.classes[::4]:
        paths = [Path(str(image)) for image in samples.select_classes([name]).images[:PER_CLASS]]
        assert len(paths) == PER_CLASS
        with torch.inference_mode():
            features = vit((torch.stack([load_pixels(path, size) for path in paths]) - mean) / std)
        predictions = (features @ head.T + bias).argmax(dim=1).tolist()
        most_frequent.append(Counter(predictions).most_common(1)[0][0])
    assert len(most_frequent) == 50
    assert len(set(most_frequent)) >= 43
