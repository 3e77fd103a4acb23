"""Saved models beyond their files: the stopped call of `learn`, the saved options, and the backbone of a model."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from caprompt import checkpoint, methods
from caprompt.backbones.registry import MODELS
from caprompt.backbones.weights import Backbone, list_packaged, load_backbone
from caprompt.errors import InputError, ModelFolderError
from caprompt.methods.options import validate_options
from caprompt.utils.devices import FP8, has_float8
from caprompt.utils.files import compute_sha256, write_json

__all__ = [
    "IN_PROGRESS",
    "find_foreign_file",
    "get_options_for_device",
    "get_saved_options",
    "has_stopped_call",
    "load_saved_backbone",
    "read_stopped_call",
    "record_evaluation",
    "select_by_prefix",
]

IN_PROGRESS = "in-progress"  # sub-folder of a model folder: checkpoint of the current call of `learn`, after a completed epoch


def find_foreign_file(folder: Path) -> Path | None:
    """Return a file because of which no model should be written to a folder: one that is neither hidden nor of a model."""
    if not folder.is_dir() or checkpoint.exists(folder):
        return None
    return next((path for path in sorted(folder.iterdir()) if path.name != IN_PROGRESS and not path.name.startswith(".")), None)


def has_stopped_call(folder: Path) -> bool:
    """Return whether the folder holds the checkpoint of a stopped call that no later call has made obsolete."""
    if not checkpoint.exists(folder / IN_PROGRESS):
        return False
    finished = checkpoint.read_config(folder)["calls"] if checkpoint.exists(folder) else 0
    return bool(checkpoint.read_config(folder / IN_PROGRESS)["calls"] == finished)


def read_stopped_call(folder: Path, config: Mapping[str, Any], digest: str) -> checkpoint.Saved | None:
    """Return the checkpoint of a stopped call, or None; raise if it has another configuration or other images (`digest`)."""
    if not has_stopped_call(folder):
        return None
    saved = checkpoint.read(folder / IN_PROGRESS)
    current = json.loads(json.dumps(config))  # as it is after a round trip through the file
    for part, value in (
        ("method", saved.config["method"]),
        ("seed", saved.config["seed"]),
        ("options", get_saved_options(saved.config)),
    ):
        if value != current[part]:
            raise InputError(f"the call that was stopped in '{folder}' had other settings ({part}); resume it with the same")
    if saved.config["backbone"]["sha256"] != current["backbone"]["sha256"]:
        raise InputError(f"the call that was stopped in '{folder}' had another backbone; resume it with the same")
    if saved.config["progress"]["digest"] != digest:
        raise InputError(f"the images are not those of the call that was stopped in '{folder}'; resume it with the same")
    return saved


def record_evaluation(folder: Path, identity: str | None, evaluation: Mapping[str, Any]) -> None:
    """Keep the last evaluation beside the version of the model that was evaluated, where the folder can be written to."""
    with suppress(ModelFolderError, OSError), checkpoint.lock_folder(folder):
        if checkpoint.read_identity(folder) == identity:
            write_json(folder / checkpoint.EVALUATION, evaluation)


def get_saved_options(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return all options of a saved model, also those that were added since (see `Options.complete_saved`)."""
    options_class = methods.get_method(config["method"]).options_class
    options = options_class.complete_saved(config["options"])
    return validate_options(options_class, options, owner=config["method"]).model_dump(mode="json")


def get_options_for_device(device: torch.device, config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of a saved model, with FP8 replaced by "auto" on a device without it."""
    options = get_saved_options(config)
    return {**options, "precision": "auto"} if options["precision"] == FP8 and not has_float8(device) else options


def select_by_prefix(tensors: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    """Return the tensors whose names start with a prefix, keyed by the rest of the name."""
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}


def load_saved_backbone(saved: Mapping[str, str], folder: Path, override: str | Path | None) -> Backbone:
    """Load the backbone that a model was trained on, from `override`, the package or the saved path, and verify its hash.

    A model from elsewhere has no path; its backbone is then found by name.
    """
    packaged = list_packaged().get(saved["name"])
    path = override or (packaged if packaged and compute_sha256(packaged) == saved["sha256"] else saved["path"])
    if not path:
        if saved["name"] not in MODELS:
            raise ModelFolderError(
                f"'{folder}' needs the backbone '{saved['name']}' (SHA-256 {saved['sha256'][:16]}...), which is not part of it; "
                "get the weights file from its author, and pass it with backbone=..."
            )
        path = saved["name"]
    elif override is None and not Path(path).is_file():
        raise ModelFolderError(f"the backbone of '{folder}' is no longer at '{path}'; say where it is with backbone=...")
    backbone = load_backbone(path)
    if backbone.sha256 != saved["sha256"]:
        raise ModelFolderError(f"'{folder}' was trained on another '{saved['name']}': the backbone's hash differs")
    return backbone
