"""Backbones by name or path: a checked weights file, its tensors in timm's naming, and how its images are prepared.

    backbone = find_backbone("vit_mini_patch8_64.tin200_distilled")      # shipped in the package
    backbone = find_backbone("weights/deit_tiny_patch16_224.safetensors")
    vit = backbone.build()                                               # frozen, in eval mode

The architecture is read off the tensors' shapes. What shapes cannot tell (number of heads, norm eps, mean and standard
deviation of the images) comes from the file's safetensors metadata, else from timm's conventions.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from caprompt.errors import InputError, UnknownNameError
from caprompt.vit import ViT, ViTConfig

__all__ = ["DEFAULT_BACKBONE", "Backbone", "available", "find_backbone", "sha256_of"]

DEFAULT_BACKBONE = "vit_mini_patch8_64.tin200_distilled"
PACKAGED = Path(__file__).parent / "backbones"

IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)


@dataclass(frozen=True)
class Backbone:
    """Weights with everything needed to use them as they were trained."""

    name: str
    path: Path
    sha256: str
    config: ViTConfig
    mean: tuple[float, float, float]
    std: tuple[float, float, float]
    weights: Mapping[str, Tensor] = field(repr=False)

    def build(self, dtype: torch.dtype = torch.float32) -> ViT:
        """The network, filled, frozen and in eval mode."""
        vit = ViT(self.config).to(dtype)
        vit.load_weights(self.weights)
        return vit.requires_grad_(False).eval()

    @property
    def parameters(self) -> int:
        """How many numbers the network holds."""
        return sum(tensor.numel() for tensor in self.weights.values())


def available() -> dict[str, Path]:
    """The backbones shipped in the package, by name."""
    return {path.name.removesuffix(".safetensors"): path for path in sorted(PACKAGED.glob("*.safetensors"))}


def find_backbone(name_or_path: str | Path) -> Backbone:
    """Read a backbone by its name or from a `.safetensors` file."""
    packaged = available()
    if str(name_or_path) in packaged:
        return read_backbone(packaged[str(name_or_path)], name=str(name_or_path))
    path = Path(name_or_path)
    if path.is_file():
        return read_backbone(path, name=path.stem)
    if path.suffix == ".safetensors" or "/" in str(name_or_path):
        raise InputError(f"there is no backbone file '{name_or_path}'")
    raise UnknownNameError("backbone", str(name_or_path), packaged, also="; or give the path of a .safetensors file")


def read_backbone(path: Path, name: str) -> Backbone:
    """Read one weights file; a classification head in it is left out, all else must fit a plain ViT."""
    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            weights = {key: file.get_tensor(key).float() for key in file.keys() if not key.startswith("head.")}  # noqa: SIM118
    except (SafetensorError, OSError) as error:
        raise InputError(f"'{path}' is not a readable safetensors file: {error}") from error
    try:
        described: dict[str, Any] = json.loads(metadata.get("caprompt", "{}"))
        config = infer_config(weights, described)
        mean, std = (three(described.get(key, usual)) for key, usual in (("mean", IMAGENET_MEAN), ("std", IMAGENET_STD)))
    except (AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
        raise InputError(f"'{path}' does not hold a plain ViT in timm's naming ({error})") from error
    return Backbone(
        name=name,
        path=path.resolve(),
        sha256=sha256_of(path),
        config=config,
        mean=mean,
        std=std,
        weights=weights,
    )


def infer_config(weights: Mapping[str, Tensor], described: Mapping[str, Any]) -> ViTConfig:
    """The architecture that a state dict has; timm's plain ViTs all have heads of 64."""
    width, _, patch, _ = weights["patch_embed.proj.weight"].shape
    grid = round((weights["pos_embed"].shape[1] - 1) ** 0.5)
    heads = int(described.get("heads", width // 64))
    if heads < 1 or width % heads:
        raise ValueError(f"a width of {width} cannot be split into {heads} heads")
    return ViTConfig(
        image_size=grid * patch,
        patch_size=patch,
        width=width,
        depth=1 + max(int(name.split(".")[1]) for name in weights if name.startswith("blocks.")),
        heads=heads,
        mlp_width=weights["blocks.0.mlp.fc1.weight"].shape[0],
        norm_eps=float(described.get("norm_eps", 1e-6)),
    )


def three(values: Sequence[float]) -> tuple[float, float, float]:
    """One number for each colour."""
    red, green, blue = map(float, values)
    return red, green, blue


def sha256_of(path: Path) -> str:
    """The SHA-256 of a file, in hex."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()
