"""Random damage to JSON documents, tensors and model folders, for tests of readers."""

from __future__ import annotations

import copy
import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import torch
from safetensors.torch import load_file, save
from torch import Tensor

from caprompt.checkpoint.folder import _hash_config
from caprompt.errors import CapromptError

JUNK: tuple[Any, ...] = (
    None,
    True,
    -1,
    0,
    3,
    10**9,
    10**30,
    0.5,
    -1e308,
    float("nan"),
    float("inf"),
    "",
    "x",
    "two\nlines",
    "../../secret",
    "\ud800",
    "x" * 5000,
    [],
    {},
    [1, "a", None],
    {"a": {"b": [{}]}},
    [[[[[[]]]]]],
)
DTYPES = (torch.float16, torch.float64, torch.int64, torch.uint8, torch.bool)
try:
    save({"a": torch.zeros(1, dtype=torch.complex64)})
    DTYPES = (*DTYPES, torch.complex64)
except KeyError:  # safetensors before 0.7 neither writes nor reads complex numbers
    pass


def is_refused(read: Callable[[], object], case: str) -> bool:
    """Return whether reading raises one sentence; any other exception, or a longer message, is a failure that names the case."""
    try:
        read()
    except CapromptError as error:
        message = str(error)
    except Exception as error:
        raise AssertionError(f"{case} raised {error!r}") from error
    else:
        return False
    assert len(message.splitlines()) == 1, f"{case}: {message}"
    assert len(message) < 1500, f"{case}: {message}"
    return True


def mutate_json(document: Any, rng: Random) -> tuple[Any, str]:
    """Return a copy of a document with one value deleted, replaced or added at any depth, and a description of the change."""
    changed = copy.deepcopy(document)
    places = list(_list_places(changed))
    if not places or rng.random() < 0.02:
        junk = rng.choice(JUNK)
        return junk, f"replaced by {str(junk)[:40]!r}"
    container, key, path = rng.choice(places)
    action = rng.choice(("delete", "replace", "replace", "replace", "add"))
    if action == "delete":
        del container[key]
        return changed, f"deleted {path}"
    junk = copy.deepcopy(rng.choice(JUNK))
    if action == "replace":
        container[key] = junk
    elif isinstance(container, list):
        container.insert(key, junk)
    else:
        container[rng.choice(("extra", "two\nlines", "x" * 300))] = junk
    return changed, f"{action} at {path}: {str(junk)[:40]!r}"


def _list_places(value: Any, path: str = "") -> Any:
    items = list(value.items()) if isinstance(value, dict) else list(enumerate(value)) if isinstance(value, list) else []
    for key, child in items:
        yield value, key, f"{path}/{key}"
        yield from _list_places(child, f"{path}/{key}")


def mutate_tensors(tensors: dict[str, Tensor], rng: Random) -> tuple[dict[str, Tensor], str]:
    """Return tensors of which one is renamed, left out, added, or has another shape or dtype."""
    changed, name = dict(tensors), rng.choice(sorted(tensors))
    tensor = changed[name]
    action = rng.choice(("rename", "delete", "add", "grow", "shrink", "flatten", "expand", "scalar", "dtype", "dtype"))
    if action in ("rename", "add"):
        other = rng.choice(("method.vit.norm.bias", "method.x", "x", "", "method." + name, "two\nlines", "method.head.weight.x"))
        changed[other] = tensor.clone()
    if action in ("rename", "delete"):
        del changed[name]
    if action == "grow":
        changed[name] = torch.cat([tensor.reshape(-1, *tensor.shape[1:])] * 2)
    elif action == "shrink":
        changed[name] = tensor.reshape(-1, *tensor.shape[1:])[:-1].clone()
    elif action == "flatten":
        changed[name] = tensor.reshape(-1, 1)
    elif action == "expand":
        changed[name] = tensor.unsqueeze(0)
    elif action == "scalar":
        changed[name] = torch.zeros((), dtype=tensor.dtype)
    elif action == "dtype":
        changed[name] = tensor.to(rng.choice(DTYPES))
    return changed, f"{action} {name}"


def mutate_model(folder: Path, rng: Random) -> str:
    """Damage one file of a model folder, compute all hashes anew, and return a description of the damage."""
    name = rng.choice(("config.json", "config.json", "classes.json", "metrics.jsonl", "state.safetensors", "records.safetensors"))
    config = json.loads((folder / "config.json").read_bytes())
    path = folder / name
    if name == "config.json":
        config, change = mutate_json(config, rng)
    elif name == "classes.json":
        document, change = mutate_json(json.loads(path.read_bytes()), rng)
        path.write_bytes(json.dumps(document).encode())
    elif name == "metrics.jsonl":
        lines, change = mutate_json([json.loads(line) for line in path.read_bytes().splitlines()], rng)
        lines = lines if isinstance(lines, list) else [lines]
        path.write_bytes("".join(json.dumps(line) + "\n" for line in lines).encode())
    else:
        tensors, change = mutate_tensors(load_file(path), rng)
        path.write_bytes(save(tensors))
    write_hashed(folder, config)
    return f"{name}: {change}"


def write_hashed(folder: Path, config: Any) -> None:
    """Write `config.json` with the hashes of the files as they are now."""
    if isinstance(config, dict):
        config.pop("sha256", None)
        if isinstance(config.get("files"), dict):
            for name in config["files"]:
                if name in ("classes.json", "metrics.jsonl", "state.safetensors", "records.safetensors"):
                    config["files"][name] = hashlib.sha256((folder / name).read_bytes()).hexdigest()
        config["sha256"] = _hash_config(config)
    (folder / "config.json").write_bytes(json.dumps(config).encode())
