"""A real checkpoint on real pictures: DeiT-Ti with its own head must see in Tiny-ImageNet what it was trained to see."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file

from caprompt.backbones.weights import load_backbone
from caprompt.data import read_source

PACK = Path(__file__).parents[2] / "shared" / "data"
WEIGHTS, PICTURES = PACK / "deit_tiny_patch16_224.safetensors", PACK / "tinyimagenet200_64px.npz"
PER_CLASS = 12


def pixels(path: Path, size: int) -> torch.Tensor:
    with Image.open(path) as image:
        enlarged = np.array(image.convert("RGB").resize((size, size), Image.Resampling.BICUBIC))
    return torch.from_numpy(enlarged).permute(2, 0, 1) / 255


@pytest.mark.slow
@pytest.mark.skipif(
    not (WEIGHTS.is_file() and PICTURES.is_file()), reason="the development data pack ../shared/data is not beside the repository"
)
def test_deit_tiny_tells_the_classes_of_tiny_imagenet_apart(tmp_path: Path) -> None:
    """Its 1,000 answers have no names here, but each class's most frequent one should be its own: 153 of 200 are."""
    words = [str(PACK / "unpack.py"), PICTURES.stem, "--to", str(tmp_path), "--per-class", "1"]
    subprocess.run([sys.executable, *words], check=True, timeout=300)
    shown = read_source(tmp_path / PICTURES.stem / "test")
    backbone, tensors = load_backbone(WEIGHTS), load_file(WEIGHTS)
    vit, size = backbone.build(), backbone.config.image_size
    head, bias = tensors["head.weight"].float(), tensors["head.bias"].float()
    mean, std = (torch.tensor(values)[:, None, None] for values in (backbone.mean, backbone.std))
    likeliest = []
    for name in shown.classes:
        pictures = [Path(str(picture)) for picture in shown.of_classes([name]).pictures[:PER_CLASS]]
        assert len(pictures) == PER_CLASS
        with torch.inference_mode():
            features = vit((torch.stack([pixels(path, size) for path in pictures]) - mean) / std)
        answers = (features @ head.T + bias).argmax(dim=1).tolist()
        likeliest.append(Counter(answers).most_common(1)[0][0])
    assert len(likeliest) == 200
    assert len(set(likeliest)) >= 145
