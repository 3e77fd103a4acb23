"""One folder holds a model: `config.json`, `classes.json`, `metrics.jsonl`, `state.safetensors`; readable after any kill.

A new version of the folder is first written whole into `.next/`, which is then renamed to `.ready/`: that rename is the moment at
which the new version counts. Its files then move into place one by one. A reader takes each file from `.ready/` where it is still
there; a writer that finds a `.ready/` finishes the move first. No kill, at any moment, leaves a mixture or nothing.

Every file's SHA-256 stands in `config.json`, and `config.json` carries its own. No pickle is ever read or written.
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
from caprompt.utils.files import commit, current_path, encode_json, finish_commit

__all__ = ["FORMAT", "Saved", "discard", "exists", "read", "read_config", "write"]

FORMAT = 2  # since 2, a regression's sums are saved by half
T = TypeVar("T")
READS = 4  # how often a folder that seems damaged is looked at before that is said
CONFIG, CLASSES, METRICS, STATE = "config.json", "classes.json", "metrics.jsonl", "state.safetensors"


@dataclass(frozen=True)
class Saved:
    """What a model folder holds."""

    config: Mapping[str, Any]
    classes: Sequence[Mapping[str, Any]]
    tensors: Mapping[str, Tensor] = field(repr=False)
    metrics: Sequence[Mapping[str, Any]] = ()


def exists(folder: Path) -> bool:
    """Is there a finished model in this folder?"""
    return current_path(folder, CONFIG).is_file()


def write(folder: Path, saved: Saved) -> None:
    """Make `saved` the folder's content, atomically."""
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
    commit(folder, {**files, CONFIG: encode_json({**config, "sha256": _fingerprint(config)})})


def read(folder: Path) -> Saved:
    """Read a folder and check all of it; anything amiss is said in one sentence."""
    return _persistently(_read, folder)


def read_config(folder: Path) -> Mapping[str, Any]:
    """The configuration alone, for questions that the large file need not be read for."""
    return _persistently(_checked_config, folder)


def _persistently(look: Callable[[Path], T], folder: Path) -> T:
    """A reader may meet a writer in the middle of its moves and see files of two versions: then it looks again."""
    for _ in range(READS - 1):
        try:
            return look(folder)
        except (ModelFolderError, FileNotFoundError):
            time.sleep(0.02)
    return look(folder)


def _read(folder: Path) -> Saved:
    config = _checked_config(folder)
    files = {name: _checked_file(folder, name, digest) for name, digest in config["files"].items()}
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
    """Remove a model folder; one that is half removed does not count as a model."""
    if folder.is_dir():
        finish_commit(folder)
        (folder / CONFIG).unlink(missing_ok=True)
        shutil.rmtree(folder)


def _checked_config(folder: Path) -> dict[str, Any]:
    if not exists(folder):
        raise ModelFolderError(f"'{folder}' does not hold a caprompt model (no {CONFIG} there)")
    try:
        config: dict[str, Any] = json.loads(current_path(folder, CONFIG).read_bytes())
        version = int(config["format"])
        own_digest = config.pop("sha256", None)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ModelFolderError(f"{CONFIG} of '{folder}' is damaged; restore the folder from a copy") from error
    if version > FORMAT:
        raise ModelFolderError(
            f"'{folder}' was written by a newer caprompt (format {version}, this one reads up to {FORMAT}); upgrade caprompt"
        )
    if own_digest != _fingerprint(config):
        raise ModelFolderError(f"{CONFIG} of '{folder}' has been altered: it does not match its own hash")
    return config


def _checked_file(folder: Path, name: str, digest: str) -> bytes:
    path = current_path(folder, name)
    if not path.is_file():
        raise ModelFolderError(f"'{folder}' is incomplete: {name} is missing; restore the folder from a copy")
    content = path.read_bytes()
    if hashlib.sha256(content).hexdigest() != digest:
        raise ModelFolderError(f"{name} of '{folder}' is damaged or has been altered: it does not match its recorded hash")
    return content


def _fingerprint(config: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(config, sort_keys=True).encode()).hexdigest()
