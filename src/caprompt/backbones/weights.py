"""Backbones by name or path: a checked weights file, its tensors in timm's naming, and how its images are prepared.

    backbone = load_backbone("vit_mini_patch8_64.tin200_distilled")      # shipped in the package
    backbone = load_backbone("vit_base_patch16_224.orig_in21k")          # on this machine or the hub: `model_names.py`
    backbone = load_backbone("weights/dino_vitbase16_pretrain.pth")      # any layout that `layouts.py` knows
    vit = backbone.build()                                               # frozen, in eval mode

The architecture of a file given by path is read off the tensors' shapes. What shapes cannot tell (number of heads, norm
eps, mean and standard deviation of the images) comes from our own safetensors metadata, else from the model's name, else
from a Hugging Face config beside the file, else from the conventions of the layout and timm's. Files are read as tensors
(`.safetensors`, `.npz`, torch's `.pth`, `.pt`, `.bin`, `.pth.tar`); nothing that a file says is ever run.
"""

from __future__ import annotations

import argparse
import json
import pickle
import re
import zipfile
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from caprompt.backbones.constants import IMAGENET_MEAN, IMAGENET_STD
from caprompt.backbones.converters import convert_to_timm, infer_config
from caprompt.backbones.registry import MODELS, SUFFIXES, find_file, find_local_file, model_of_file
from caprompt.backbones.vit import ViT, ViTConfig
from caprompt.errors import InputError, UnknownNameError
from caprompt.utils.files import first_line, read_json, sha256_of

__all__ = [
    "DEFAULT_BACKBONE",
    "IMAGENET_MEAN",
    "IMAGENET_STD",
    "Backbone",
    "count_parameters",
    "list_backbones",
    "list_packaged",
    "load_backbone",
    "read_backbone_file",
]

DEFAULT_BACKBONE = "vit_mini_patch8_64.tin200_distilled"
PACKAGED = Path(__file__).parent
# What the readers raise on damaged files.
DAMAGED = (
    SafetensorError,
    OSError,
    ValueError,
    TypeError,
    KeyError,
    IndexError,
    RuntimeError,
    EOFError,
    zipfile.BadZipFile,
    zlib.error,
)


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

    def described(self) -> dict[str, Any]:
        """What a run keeps of it."""
        return {
            "name": self.name,
            "sha256": self.sha256,
            "image_size": self.config.image_size,
            "norm_eps": self.config.norm_eps,
            "mean": list(self.mean),
            "std": list(self.std),
        }


def list_packaged() -> dict[str, Path]:
    """The backbones shipped in the package, by name."""
    return {path.name.removesuffix(".safetensors"): path for path in sorted(PACKAGED.glob("*.safetensors"))}


def list_backbones() -> list[tuple[str, ViTConfig, str]]:
    """(name, shape, whether it is present) of every backbone that has a name."""
    packaged = [(name, read_backbone_file(path, name).config, "in package") for name, path in list_packaged().items()]
    absent = {model.name: "no: hub" if model.repo else "no: by hand" for model in MODELS.values()}
    return packaged + [(name, model.config, "yes" if find_local_file(model) else absent[name]) for name, model in MODELS.items()]


def load_backbone(name_or_path: str | Path) -> Backbone:
    """Read a backbone by its name, fetching it if need be, or from a weights file."""
    name, packaged = str(name_or_path), list_packaged()
    if name in packaged:
        return read_backbone_file(packaged[name], name=name)
    path = Path(name_or_path)
    if path.is_file():
        model = model_of_file(path)
        return read_backbone_file(path, name=model.name if model else path.stem)
    if name in MODELS:
        return read_backbone_file(find_file(MODELS[name]), name=name)
    if path.suffix in SUFFIXES or "/" in name:
        raise InputError(f"there is no backbone file '{name_or_path}'")
    also = f"; or give the path of a weights file ({', '.join(SUFFIXES)})"
    raise UnknownNameError("backbone", name, [*packaged, *MODELS], also=also)


def read_backbone_file(path: Path, name: str) -> Backbone:
    """Read one weights file; a head in it is left out, all else must fit the named model, or else some plain ViT, strictly."""
    checkpoint, metadata = read_tensors(path)
    try:
        converted = convert_to_timm(checkpoint)
        facts = {"mean": IMAGENET_MEAN, "std": IMAGENET_STD, **converted.facts}
        if converted.layout.startswith("Hugging Face"):
            facts |= beside(path)
        if (model := MODELS.get(name)) is not None:
            facts |= {"mean": model.mean, "std": model.std}
        facts |= json.loads(metadata.get("caprompt", "{}"))
        config = model.config if model else infer_config(converted.weights, facts)
        mean, std = three(facts["mean"]), three(facts["std"])
    except InputError as error:
        raise InputError(f"'{path}' cannot be used: {error}") from error
    except (AttributeError, IndexError, KeyError, RuntimeError, TypeError, ValueError) as error:
        raise InputError(f"'{path}' does not hold a plain ViT in a layout known here ({error})") from error
    check_weights_fit(path, name, config, converted.weights)
    return Backbone(name, path.absolute(), sha256_of(path), config, mean, std, converted.weights)


def check_weights_fit(path: Path, name: str, config: ViTConfig, weights: Mapping[str, Tensor]) -> None:
    """Refuse weights that do not fit, before anything is built."""
    with torch.device("meta"):
        vit = ViT(config)
    try:
        vit.check_weights(weights)
    except InputError as error:
        wanted = f"is not '{name}'" if name in MODELS else "does not hold a plain ViT"
        raise InputError(f"'{path}' {wanted}: {error}") from error


def count_parameters(config: ViTConfig) -> int:
    """How many numbers a network of this shape holds."""
    with torch.device("meta"):
        return sum(parameter.numel() for parameter in ViT(config).parameters())


def three(values: Sequence[float]) -> tuple[float, float, float]:
    """One number for each colour."""
    red, green, blue = map(float, values)
    return red, green, blue


def read_tensors(path: Path) -> tuple[Mapping[str, Any], Mapping[str, str]]:
    """(what the file holds by name, its safetensors metadata)."""
    reader, kind = {
        ".safetensors": (read_safetensors, "safetensors file"),
        ".npz": (read_npz, "npz file"),
    }.get(path.suffix, (read_torch, "torch checkpoint"))
    try:
        held, metadata = reader(path)
    except InputError:
        raise
    except DAMAGED as error:
        raise InputError(f"'{path}' is not a readable {kind}: {first_line(error)}") from error
    if not isinstance(held, Mapping):
        raise InputError(f"'{path}' holds a {type(held).__name__}, not tensors by name")
    return held, metadata


def read_safetensors(path: Path) -> tuple[Any, dict[str, str]]:
    """Tensors and metadata."""
    with safe_open(path, framework="pt") as file:
        return {key: file.get_tensor(key) for key in file.keys()}, file.metadata() or {}  # noqa: SIM118


def read_npz(path: Path) -> tuple[Any, dict[str, str]]:
    """Arrays as tensors; pickled objects are refused by numpy."""
    with np.load(path, allow_pickle=False) as file:
        return {key: torch.from_numpy(np.ascontiguousarray(file[key])) for key in file.files}, {}


def read_torch(path: Path) -> tuple[Any, dict[str, str]]:
    """A checkpoint of torch's, by its unpickler that admits tensors and plain values (and the options of a training run)."""
    try:
        torch.serialization.add_safe_globals([argparse.Namespace])  # it can hold values only
        return torch.load(path, map_location="cpu", weights_only=True), {}
    except pickle.UnpicklingError as error:
        named = re.search(r"GLOBAL (\S+)", str(error))
        if named is None:
            raise InputError(f"'{path}' is not a readable torch checkpoint") from error
        raise InputError(
            f"'{path}' holds code besides weights ('{named[1]}'), which is never run here; save its tensors alone, as .safetensors"
        ) from error


def beside(path: Path) -> dict[str, Any]:
    """What Hugging Face's `config.json` and `preprocessor_config.json` beside a weights file tell, if they are there."""
    config, images = read_json(path.with_name("config.json")), read_json(path.with_name("preprocessor_config.json"))
    config = config.get("vision_config") or config
    activation = config.get("hidden_act", "")
    if activation not in ("", "gelu", "quick_gelu"):
        raise InputError(f"its activation is '{activation}', which is not reproduced here")
    told = {
        "heads": config.get("num_attention_heads"),
        "norm_eps": config.get("layer_norm_eps"),
        "quick_gelu": activation == "quick_gelu" if activation else None,
        "mean": images.get("image_mean"),
        "std": images.get("image_std"),
    }
    return {key: value for key, value in told.items() if value is not None}
