"""On-disk format of a model folder: `config.json`, `classes.json`, `metrics.jsonl`, `state.safetensors`.

A folder stays readable whenever the writer is killed. A new version is first written completely into `.next/`, which is then
renamed to `.ready/`: with that rename the new version takes effect. Its files are then moved into place one by one.
A reader takes each file from `.ready/` as long as it is there; a writer that finds a `.ready/` finishes the move first.

`config.json` holds the SHA-256 of every file and of itself. No pickle is ever read or written.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from safetensors import SafetensorError
from safetensors.torch import load as load_tensors
from safetensors.torch import save as dump_tensors
from torch import Tensor

from caprompt import __version__
from caprompt.errors import ModelFolderError
from caprompt.utils.files import commit, encode_json, finish_commit, get_current_path

__all__ = ["CONFIG", "FORMAT", "STATE", "Saved", "discard", "exists", "read", "read_config", "write"]

FORMAT = 2  # since 2, only one triangle of the symmetric sums of ridge regression is saved
T = TypeVar("T")
MAX_READS = 4  # attempts to read a folder before it counts as damaged
CONFIG, CLASSES, METRICS, STATE = "config.json", "classes.json", "metrics.jsonl", "state.safetensors"


@dataclass(frozen=True)
class Saved:
    """Contents of a model folder."""

    config: Mapping[str, Any]
    classes: Sequence[Mapping[str, Any]]
    tensors: Mapping[str, Tensor] = field(repr=False)
    metrics: Sequence[Mapping[str, Any]] = ()


def exists(folder: Path) -> bool:
    """Return whether the folder holds a complete model."""
    return get_current_path(folder, CONFIG).is_file()


def write(folder: Path, saved: Saved) -> None:
    """Replace the contents of the folder by `saved`, atomically."""
    files = {
        CLASSES: encode_json(saved.classes),
        METRICS: "".join(json.dumps(record) + "\n" for record in saved.metrics).encode(),
        STATE: dump_tensors({name: tensor.detach().cpu().contiguous() for name, tensor in saved.tensors.items()}),
    }
    config = {
        "format": FORMAT,
        "caprompt": __version__,
        **saved.config,
        "files": {name: hashlib.sha256(content).hexdigest() for name, content in files.items()},
    }
    commit(folder, {**files, CONFIG: encode_json({**config, "sha256": _hash_config(config)})})


def read(folder: Path) -> Saved:
    """Read a folder and verify every hash; raise `ModelFolderError` if anything is missing or damaged."""
    return _retry(_read, folder)


def read_config(folder: Path) -> Mapping[str, Any]:
    """Read and verify `config.json` only, without loading the tensors."""
    return _retry(_read_checked_config, folder)


def _retry(reader: Callable[[Path], T], folder: Path) -> T:
    """Read again after a failure: a concurrent writer may just be moving its files, so that two versions were seen."""
    for _ in range(MAX_READS - 1):
        try:
            return reader(folder)
        except (ModelFolderError, FileNotFoundError):
            time.sleep(0.02)
    return reader(folder)


def _read(folder: Path) -> Saved:
    config = _read_checked_config(folder)
    files = {name: _read_checked_file(folder, name, digest) for name, digest in config["files"].items()}
    try:
        return Saved(
            config=config,
            classes=json.loads(files[CLASSES]),
            tensors=load_tensors(files[STATE]),
            metrics=[json.loads(line) for line in files[METRICS].splitlines()],
        )
    except (KeyError, ValueError, SafetensorError) as error:
        raise ModelFolderError(f"the model in '{folder}' cannot be read: {error}") from error


def discard(folder: Path) -> None:
    """Delete a model folder, `config.json` first, so that a partly deleted folder does not count as a model."""
    if folder.is_dir():
        finish_commit(folder)
        (folder / CONFIG).unlink(missing_ok=True)
        shutil.rmtree(folder)


def _read_checked_config(folder: Path) -> dict[str, Any]:
    if not exists(folder):
        raise ModelFolderError(f"'{folder}' does not hold a caprompt model (it has no {CONFIG})")
    try:
        config: dict[str, Any] = json.loads(get_current_path(folder, CONFIG).read_bytes())
        version = int(config["format"])
        own_digest = config.pop("sha256", None)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ModelFolderError(f"{CONFIG} of '{folder}' is damaged; restore the folder from a backup") from error
    if version > FORMAT:
        raise ModelFolderError(
            f"'{folder}' was written by a newer caprompt (format {version}, this one reads up to {FORMAT}); upgrade caprompt"
        )
    if own_digest != _hash_config(config):
        raise ModelFolderError(f"{CONFIG} of '{folder}' was modified and does not match its hash; restore the folder from a backup")
    return config


def _read_checked_file(folder: Path, name: str, digest: str) -> bytes:
    path = get_current_path(folder, name)
    if not path.is_file():
        raise ModelFolderError(f"'{folder}' is incomplete: {name} is missing; restore the folder from a backup")
    content = path.read_bytes()
    if hashlib.sha256(content).hexdigest() != digest:
        raise ModelFolderError(
            f"{name} of '{folder}' is damaged or was modified and does not match its hash; restore the folder from a backup"
        )
    return content


def _hash_config(config: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(config, sort_keys=True).encode()).hexdigest()
