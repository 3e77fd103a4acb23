"""Tiny models and images for tests: a random ViT of depth 2 and width 32, and colored squares on noise."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.torch import save_file

from caprompt.backbones.vit import ViT, ViTConfig

__all__ = ["COLORS", "TINY", "square", "squares", "tiny_vit", "write_backbone"]

TINY = ViTConfig(image_size=16, patch_size=4, width=32, depth=2, heads=2, mlp_width=64)
COLORS = {
    "red": (220, 30, 30),
    "green": (30, 200, 40),
    "blue": (30, 60, 220),
    "yellow": (230, 220, 40),
    "purple": (150, 30, 180),
    "cyan": (30, 200, 210),
    "white": (240, 240, 240),
    "black": (15, 15, 15),
    "orange": (240, 140, 20),
    "gray": (128, 128, 128),
}


def tiny_vit(seed: int = 0, config: ViTConfig = TINY) -> ViT:
    """Return a frozen ViT with random weights, the same for the same seed, whose features differ between images."""
    vit = ViT(config)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in vit.named_parameters():
            if "norm" in name:
                parameter.fill_(1.0 if name.endswith("weight") else 0.0)
            else:
                parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.15)
    return vit.requires_grad_(False).eval()


def write_backbone(path: Path, vit: ViT | None = None) -> Path:
    """Write the weights file of a ViT, by default a tiny one, with the metadata that the package's own files have."""
    vit = vit or tiny_vit()
    metadata = {"heads": vit.config.heads, "norm_eps": vit.config.norm_eps, "mean": [0.5] * 3, "std": [0.5] * 3}
    save_file(vit.state_dict(), path, metadata={"caprompt": json.dumps(metadata)})
    return path


def square(color: str, seed: int, size: int = 20) -> NDArray[np.uint8]:
    """Return an image (size, size, 3) of a colored square on noise; the seed determines its position and the noise."""
    rng = np.random.default_rng([seed, *COLORS[color]])
    image = rng.integers(90, 160, (size, size, 3)).astype(np.uint8)
    top, left = rng.integers(0, size // 3, 2)
    side = size // 2 + int(rng.integers(0, size // 4))
    image[top : top + side, left : left + side] = np.clip(np.array(COLORS[color]) + rng.integers(-15, 15, 3), 0, 255)
    return image


def squares(colors: Sequence[str], each: int = 5, start: int = 0) -> tuple[list[NDArray[np.uint8]], list[str]]:
    """Return (images, labels): `each` squares of every color; another `start` gives other images."""
    images = [square(color, start + number) for color in colors for number in range(each)]
    return images, [color for color in colors for _ in range(each)]
