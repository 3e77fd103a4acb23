"""Damaged weights files: safetensors, npz and torch checkpoints, also with forged headers and of odd structures."""

from __future__ import annotations

import argparse
import io
import json
import pickle
import struct
import zipfile
from collections import OrderedDict
from collections.abc import Callable, Mapping
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import torch
from helpers import squares, tiny_vit, write_backbone
from mutations import mutate_json, mutate_tensors
from safetensors.torch import load, save

from caprompt import ContinualClassifier
from caprompt.backbones.vit import ViTConfig
from caprompt.backbones.weights import load_backbone
from robust.attack import Attack, InvalidError
from robust.damage import mutate_bytes
from robust.models import mutate_header, mutate_values

WIDE = ViTConfig(image_size=16, patch_size=4, width=64, depth=1, heads=1, mlp_width=64)  # heads are of 64 channels by default
SUFFIXES = ("safetensors", "npz", "pth", "bin", "pt")


def prepare(folder: Path) -> dict[str, bytes]:
    """Return a tiny ViT in every kind of file, in the layouts of timm and of DINO."""
    torch.set_num_threads(1)
    own = write_backbone(folder / "tiny.safetensors").read_bytes()
    weights = dict(tiny_vit(config=WIDE).state_dict())
    files = {"safetensors": own, **{suffix: _encode(weights, suffix) for suffix in SUFFIXES[1:]}}
    files["pth"] = _encode({"teacher": {f"backbone.{name}": tensor for name, tensor in weights.items()}}, "pth")
    return {**files, "plain": save(weights)}


def _encode(content: Mapping[str, Any], suffix: str) -> bytes:
    buffer = io.BytesIO()
    if suffix == "npz":
        np.savez(buffer, **{name: tensor.numpy() for name, tensor in content.items()})
    else:
        torch.save(content, buffer, _use_new_zipfile_serialization=suffix != "bin")
    return buffer.getvalue()


def damage(files: dict[str, bytes], folder: Path, rng: Random, number: int) -> str:
    """Write one damaged file."""
    suffix = SUFFIXES[number % len(SUFFIXES)]
    path = folder / f"weights.{suffix}"
    way = rng.choice(("bytes", "bytes", "tensors", "values", "structure"))
    if suffix == "safetensors" and rng.random() < 0.3:
        path.write_bytes(files[suffix])
        return f"{suffix}: {mutate_header(path, rng) if rng.random() < 0.5 else _mutate_facts(path, rng)}"
    if way == "bytes":
        content, note = mutate_bytes(files[suffix], rng.choice(list(files.values())), rng, 4096)
    elif way == "structure":
        content, note = _make_odd(rng)
    else:
        weights, note = (mutate_tensors if way == "tensors" else mutate_values)(load(files["plain"]), rng)
        weights = {name: tensor for name, tensor in weights.items() if suffix != "npz" or name}
        content = save(weights) if suffix == "safetensors" else _encode(weights, suffix)
    path.write_bytes(content)
    return f"{suffix}: {note}"


def _mutate_facts(path: Path, rng: Random) -> str:
    """Damage the metadata of a safetensors file: heads, eps, mean and deviation."""
    content = path.read_bytes()
    (length,) = struct.unpack("<Q", content[:8])
    header = json.loads(content[8 : 8 + length])
    facts, note = mutate_json(json.loads(header["__metadata__"]["caprompt"]), rng)
    header["__metadata__"]["caprompt"] = json.dumps(facts)
    encoded = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(encoded)) + encoded + content[8 + length :])
    return f"facts: {note}"


def _make_odd(rng: Random) -> tuple[bytes, str]:
    """Return a checkpoint of another structure than tensors by name."""
    name = rng.choice(sorted(ODD))
    return ODD[name](), name


def _contain_itself() -> bytes:
    loop: dict[str, Any] = {}
    loop["state_dict"] = loop
    return _encode(loop, "pth")


def _expand(*names: str) -> bytes:
    """A tensor of stride 0, which takes a few bytes in the file and gigabytes in memory once it is copied."""
    big = torch.zeros(1).expand(1 << 31)
    return _encode(dict.fromkeys(names, big) or {"cls_token": big}, "pth")


def _nest(depth: int) -> bytes:
    value: Any = {"cls_token": torch.zeros(1, 1, 32)}
    for _ in range(depth):
        value = {"model": value}
    return _encode(value, "pth")


def _zip_bomb() -> bytes:
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w", zipfile.ZIP_DEFLATED) as packed:
        packed.writestr("a.npy", bytes(300_000_000))
    return content.getvalue()


class _Harmful:
    def __reduce__(self) -> tuple[Any, ...]:
        return (print, ("code of a file was run",))


def _header_of_npy(shape: tuple[int, ...]) -> bytes:
    header = str({"descr": "<f4", "fortran_order": False, "shape": shape}).encode().ljust(117) + b"\n"
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as packed:
        packed.writestr("cls_token.npy", b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header)
    return content.getvalue()


ODD: dict[str, Callable[[], bytes]] = {
    "contains itself": _contain_itself,
    "stride 0": _expand,
    "stride 0 under all names": lambda: _expand(*tiny_vit().state_dict()),
    "deeply nested": lambda: _nest(50),
    "list": lambda: _encode([1, 2, 3], "pth"),  # type: ignore[arg-type]
    "tensor": lambda: _encode(torch.zeros(3), "pth"),  # type: ignore[arg-type]
    "namespace": lambda: _encode({"args": argparse.Namespace(x=1), "state_dict": {}}, "pth"),
    "empty": lambda: b"",
    "code": lambda: pickle.dumps(_Harmful()),
    "code in a checkpoint": lambda: pickle.dumps({"state_dict": _Harmful()}, protocol=2),
    "tiny pickle of a huge list": lambda: b"\x80\x02]" + b"K\x01a" * 10 + b"j\xff\xff\xff\x7f.",
    "memo of a huge index": lambda: b"\x80\x02}r\xff\xff\xff\x7f.",
    "huge long": lambda: b"\x80\x02\x8b\xff\xff\xff\x7f.",
    "huge bytes": lambda: b"\x80\x05\x8e" + struct.pack("<Q", 2**40) + b".",
    "zip bomb": _zip_bomb,
    "npy of a huge shape": lambda: _header_of_npy((2**40,)),
    "npy of a negative shape": lambda: _header_of_npy((-1, 4)),
    "keys that are no text": lambda: _encode(OrderedDict({1: torch.zeros(2), (2, 3): torch.zeros(1)}), "pth"),  # type: ignore[arg-type]
    "sparse": lambda: _encode({"cls_token": torch.zeros(1, 1, 32).to_sparse()}, "pth"),
    "quantized": lambda: _encode({"cls_token": torch.quantize_per_tensor(torch.zeros(1, 1, 32), 0.1, 0, torch.qint8)}, "pth"),
    "meta tensors": lambda: _encode({name: tensor.to("meta") for name, tensor in tiny_vit().state_dict().items()}, "pth"),
    "strings": lambda: _encode(dict.fromkeys(tiny_vit().state_dict(), "x"), "pth"),
}


def use(_: object, folder: Path) -> None:
    """Load the backbone, and teach and ask a model on it."""
    (path,) = folder.iterdir()
    backbone = load_backbone(path)
    model = ContinualClassifier("ncm", backbone, device="cpu")
    model.learn(squares(["red", "green"], each=2))
    scores = model.predict_proba(squares(["red"], each=1)[0])
    if not np.isfinite(scores).all():
        raise InvalidError(f"scores {scores}")


ATTACK = Attack("checkpoints", "mutated weights files", 600, 80, prepare, damage, use)
