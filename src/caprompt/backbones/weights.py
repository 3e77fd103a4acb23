"""Loading of backbones by name or path, as weights under timm's names with their normalization.

    backbone = load_backbone("vit_mini_patch8_64.tin200_distilled")   # part of the package
    backbone = load_backbone("vit_base_patch16_224.orig_in21k")       # local or from the hub
    backbone = load_backbone("weights/dino_vitbase16_pretrain.pth")   # in any known layout
    vit = backbone.build()                                            # frozen, in eval mode

The architecture of a file passed by path is inferred from the shapes of its tensors. What shapes do
not determine (number of heads, norm eps, mean and std of the images) comes from our own safetensors
metadata, else from the model's name, else from a Hugging Face config next to the file, else from
the conventions of the layout and of timm. Files (`.safetensors`, `.npz`, torch's `.pth`, `.pt`,
`.bin`, `.pth.tar`) are read as tensors; code in a file is never run.
"""

from __future__ import annotations

import argparse
import json
import math
import pickle
import re
import struct
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
from caprompt.backbones.registry import MODELS, SUFFIXES, find_file, find_local_file, identify_model
from caprompt.backbones.vit import ViT, ViTConfig
from caprompt.errors import InputError, UnknownNameError, first_line
from caprompt.utils.files import compute_sha256, read_json

__all__ = [
    "DEFAULT_BACKBONE",
    "PACKAGED_LICENSE",
    "Backbone",
    "count_parameters",
    "list_backbones",
    "list_packaged",
    "load_backbone",
    "read_backbone_file",
]

DEFAULT_BACKBONE = "vit_mini_patch8_64.tin200_distilled"
PACKAGED_LICENSE = "Apache-2.0"  # that of the package
PACKAGE_DIRECTORY = Path(__file__).parent
# What the readers raise for damaged files.
READ_ERRORS = (
    SafetensorError,
    ArithmeticError,
    AssertionError,
    AttributeError,
    OSError,
    ValueError,
    TypeError,
    LookupError,
    MemoryError,
    RuntimeError,
    EOFError,
    struct.error,
    zipfile.BadZipFile,
    zlib.error,
)
# Weights hardly compress, and few tensors share their values: a file whose tensors take more than
# this many times its size was made to exhaust the memory.
MAX_EXPANSION = 20


@dataclass(frozen=True)
class Backbone:
    """Pre-trained weights with their architecture and normalization."""

    name: str
    path: Path
    sha256: str
    config: ViTConfig
    mean: tuple[float, float, float]
    std: tuple[float, float, float]
    weights: Mapping[str, Tensor] = field(repr=False)

    def build(self, dtype: torch.dtype = torch.float32) -> ViT:
        """Return the network with its weights, frozen and in eval mode."""
        vit = ViT(self.config).to(dtype)
        vit.load_weights(self.weights)
        return vit.requires_grad_(False).eval()

    @property
    def num_parameters(self) -> int:
        """The number of parameters of the network."""
        return sum(tensor.numel() for tensor in self.weights.values())

    def describe(self) -> dict[str, Any]:
        """Return what a run records of its backbone."""
        return {
            "name": self.name,
            "sha256": self.sha256,
            "image_size": self.config.image_size,
            "norm_eps": self.config.norm_eps,
            "mean": list(self.mean),
            "std": list(self.std),
        }


def list_packaged() -> dict[str, Path]:
    """Return the weights files that are part of the package, by name."""
    return {path.name.removesuffix(".safetensors"): path for path in sorted(PACKAGE_DIRECTORY.glob("*.safetensors"))}


def list_backbones() -> list[tuple[str, ViTConfig, str]]:
    """Return (name, architecture, availability) of every backbone that has a name."""
    packaged = [(name, read_backbone_file(path, name).config, "in package") for name, path in list_packaged().items()]
    absent = {model.name: "no: hub" if model.repo else "no: by hand" for model in MODELS.values()}
    return packaged + [(name, model.config, "yes" if find_local_file(model) else absent[name]) for name, model in MODELS.items()]


def load_backbone(name_or_path: str | Path) -> Backbone:
    """Load a backbone by name, downloading it if necessary, or from a weights file."""
    name, packaged = str(name_or_path), list_packaged()
    if name in packaged:
        return read_backbone_file(packaged[name], name=name)
    path = Path(name_or_path)
    if path.is_file():
        model = identify_model(path)
        return read_backbone_file(path, name=model.name if model else path.stem)
    if name in MODELS:
        return read_backbone_file(find_file(MODELS[name]), name=name)
    if path.suffix in SUFFIXES or "/" in name:
        raise InputError(f"there is no backbone file '{name_or_path}'")
    also = f"; or pass the path of a weights file ({', '.join(SUFFIXES)})"
    raise UnknownNameError("backbone", name, [*packaged, *MODELS], also=also)


def read_backbone_file(path: Path, name: str) -> Backbone:
    """Read one weights file.

    Heads are dropped, all else must fit the named model, or some plain ViT, strictly.
    """
    checkpoint, metadata = _read_checkpoint(path)
    try:
        converted = convert_to_timm(checkpoint)
        facts = {"mean": IMAGENET_MEAN, "std": IMAGENET_STD, **converted.facts}
        if converted.layout.startswith("Hugging Face"):
            facts |= _read_hugging_face_configs(path)
        if (model := MODELS.get(name)) is not None:
            facts |= {"mean": model.mean, "std": model.std}
        facts |= json.loads(metadata.get("caprompt", "{}"))
        config = model.config if model else infer_config(converted.weights, facts)
        mean, std = _to_rgb(facts["mean"]), _to_rgb(facts["std"])
        _check_facts(config, mean, std)
    except InputError as error:
        raise InputError(f"'{path}' cannot be used: {error}") from error
    except (ArithmeticError, AttributeError, LookupError, RuntimeError, TypeError, ValueError) as error:
        raise InputError(f"'{path}' does not hold a plain ViT in a known layout ({first_line(error)})") from error
    _check_weights(path, name, config, converted.weights)
    return Backbone(name, path.absolute(), compute_sha256(path), config, mean, std, converted.weights)


def _check_weights(path: Path, name: str, config: ViTConfig, weights: Mapping[str, Tensor]) -> None:
    """Raise an error if weights do not fit the architecture, without allocating the network, or are no trained weights."""
    try:
        with torch.device("meta"):
            vit = ViT(config)
        vit.check_weights(weights)
    except (InputError, ArithmeticError, RuntimeError) as error:
        problem = f"is not '{name}'" if name in MODELS else "does not hold a plain ViT"
        raise InputError(f"'{path}' {problem}: {first_line(error)}") from error
    for tensor_name, tensor in weights.items():
        problem = _find_bad_values(tensor_name, tensor)
        if problem:
            raise InputError(f"'{path}' cannot be used: {problem}; get the weights file again")


def _find_bad_values(name: str, weights: Tensor) -> str:
    """Return why these weights cannot have been trained, or an empty string.

    >>> _find_bad_values("norm.bias", torch.zeros(3)), _find_bad_values("norm.weight", torch.ones(3))
    ('', '')
    >>> _find_bad_values("norm.bias", torch.tensor([0.0, float("nan")]))
    "its 'norm.bias' has values that are not finite"
    """
    low, high = (float(each) for each in weights.aminmax())
    if not (math.isfinite(low) and math.isfinite(high)):
        return f"its '{name}' has values that are not finite"
    if name.endswith(".weight") and low == high and (weights.ndim > 1 or low == 0):  # norms start with ones everywhere
        return f"all values of its '{name}' are {low:g}, so that all images would look the same"
    return ""


def _check_facts(config: ViTConfig, mean: Sequence[float], std: Sequence[float]) -> None:
    """Raise ValueError for an architecture or a normalization that cannot be computed with."""
    if not all(map(math.isfinite, (*mean, *std))) or min(std) <= 0:
        raise ValueError(f"images cannot be normalized with the mean {tuple(mean)} and the deviation {tuple(std)}")
    if not 0 < config.norm_eps < 1:
        raise ValueError(f"its norms have the eps {config.norm_eps}")


def count_parameters(config: ViTConfig) -> int:
    """Return the number of parameters of a network of this architecture."""
    with torch.device("meta"):
        return sum(parameter.numel() for parameter in ViT(config).parameters())


def _to_rgb(values: Sequence[float]) -> tuple[float, float, float]:
    """Convert a sequence to one value per color channel."""
    red, green, blue = map(float, values)
    return red, green, blue


def _read_checkpoint(path: Path) -> tuple[Mapping[str, Any], Mapping[str, str]]:
    """Return the content of a file by name, and its safetensors metadata."""
    reader, kind = {
        ".safetensors": (_read_safetensors, "safetensors file"),
        ".npz": (_read_npz, "npz file"),
    }.get(path.suffix, (_read_torch, "torch checkpoint"))
    try:
        _check_archive(path)
        checkpoint, metadata = reader(path)
    except InputError:
        raise
    except READ_ERRORS as error:
        raise InputError(f"'{path}' is not a readable {kind}: {first_line(error)}") from error
    if not isinstance(checkpoint, Mapping):
        raise InputError(f"'{path}' holds a {type(checkpoint).__name__}, not tensors by name")
    _check_expansion(path, _count_bytes(checkpoint))
    return checkpoint, metadata


def _check_archive(path: Path) -> None:
    """Refuse a zip file, as npz files and torch checkpoints are, that unpacks to far more than its size."""
    with path.open("rb") as file:
        is_zip = file.read(4) == b"PK\x03\x04"
    if is_zip:
        with zipfile.ZipFile(path) as archive:
            _check_expansion(path, sum(member.file_size for member in archive.infolist()))


def _check_expansion(path: Path, num_bytes: int) -> None:
    """Refuse a small file whose contents would take a lot of memory."""
    size = path.stat().st_size
    if num_bytes > MAX_EXPANSION * size:
        raise InputError(f"'{path}' is refused: its {size:,} bytes would become {num_bytes:,}; get the weights file again")


def _count_bytes(checkpoint: Mapping[str, Any]) -> int:
    """Return the bytes that the tensors of a checkpoint take once each has memory of its own; mappings may contain each other."""
    total, pending, seen = 0, [checkpoint], {id(checkpoint)}
    while pending:
        for value in pending.pop().values():
            if isinstance(value, Tensor):
                total += value.numel() * value.element_size()
            elif isinstance(value, Mapping) and id(value) not in seen:
                seen.add(id(value))
                pending.append(value)
    return total


def _read_safetensors(path: Path) -> tuple[Any, dict[str, str]]:
    """Read tensors and metadata."""
    with safe_open(path, framework="pt") as file:
        return {key: file.get_tensor(key) for key in file.keys()}, file.metadata() or {}  # noqa: SIM118


def _read_npz(path: Path) -> tuple[Any, dict[str, str]]:
    """Read arrays as tensors; numpy refuses pickled objects."""
    with np.load(path, allow_pickle=False) as file:
        return {key: torch.from_numpy(np.ascontiguousarray(file[key])) for key in file.files}, {}


def _read_torch(path: Path) -> tuple[Any, dict[str, str]]:
    """Read a torch checkpoint.

    Its restricted unpickler admits tensors, plain values and a training run's `argparse.Namespace`.
    """
    try:
        torch.serialization.add_safe_globals([argparse.Namespace])  # it can contain values only
        return torch.load(path, map_location="cpu", weights_only=True), {}
    except pickle.UnpicklingError as error:
        code = re.search(r"GLOBAL (\S+)", str(error))
        if code is None:
            raise InputError(f"'{path}' is not a readable torch checkpoint") from error
        raise InputError(
            f"'{path}' holds code besides weights ('{code[1]}'), which is never run; save only its tensors, as .safetensors"
        ) from error


def _read_hugging_face_configs(path: Path) -> dict[str, Any]:
    """Read facts from the JSON files next to a Hugging Face weights file, if there are any."""
    config, processor = read_json(path.with_name("config.json")), read_json(path.with_name("preprocessor_config.json"))
    config = config.get("vision_config") or config
    activation = config.get("hidden_act", "")
    if activation not in ("", "gelu", "quick_gelu"):
        raise InputError(f"its activation is '{activation}', which is not supported")
    facts = {
        "heads": config.get("num_attention_heads"),
        "norm_eps": config.get("layer_norm_eps"),
        "quick_gelu": activation == "quick_gelu" if activation else None,
        "mean": processor.get("image_mean"),
        "std": processor.get("image_std"),
    }
    return {key: value for key, value in facts.items() if value is not None}
