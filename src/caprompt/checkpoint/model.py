"""What a model folder means beyond its files: a call in progress, and the backbone that a model belongs to."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from caprompt import checkpoint, methods
from caprompt.backbones.weights import Backbone, list_packaged, load_backbone
from caprompt.errors import InputError, ModelFolderError
from caprompt.methods.options import validate_options
from caprompt.utils.devices import FP8, has_float8
from caprompt.utils.files import sha256_of

__all__ = [
    "IN_PROGRESS",
    "has_stopped_call",
    "load_saved_backbone",
    "options_for_device",
    "read_stopped_call",
    "saved_options",
    "select_by_prefix",
]

IN_PROGRESS = "in-progress"  # sub-folder of a model folder: the call that is being learned, after its last whole epoch


def has_stopped_call(folder: Path) -> bool:
    """Does a checkpoint lie in this folder that a later call has not made obsolete?"""
    if not checkpoint.exists(folder / IN_PROGRESS):
        return False
    finished = checkpoint.read_config(folder)["calls"] if checkpoint.exists(folder) else 0
    return bool(checkpoint.read_config(folder / IN_PROGRESS)["calls"] == finished)


def read_stopped_call(home: Path, config: Mapping[str, Any], digest: str) -> checkpoint.Saved | None:
    """The checkpoint of a call that was stopped here, if there is one; it must be of this configuration and these images."""
    if not has_stopped_call(home):
        return None
    saved = checkpoint.read(home / IN_PROGRESS)
    own = json.loads(json.dumps(config))  # as it would be read
    for part, before in (
        ("method", saved.config["method"]),
        ("seed", saved.config["seed"]),
        ("options", saved_options(saved.config)),
    ):
        if before != own[part]:
            raise InputError(f"the call that was stopped in '{home}' had other settings ({part}); resume it with the same")
    if saved.config["backbone"]["sha256"] != own["backbone"]["sha256"]:
        raise InputError(f"the call that was stopped in '{home}' had another backbone; resume it with the same")
    if saved.config["progress"]["digest"] != digest:
        raise InputError(f"the images are not those whose learning was stopped in '{home}'; give the same ones to resume")
    return saved


def saved_options(config: Mapping[str, Any]) -> dict[str, Any]:
    """All options of a saved model as they are called today: those that came later have their usual values."""
    options_class = methods.get_method(config["method"]).options_class
    gone = options_class.retired
    kept = {name: value for name, value in config["options"].items() if name not in gone or value != gone[name]}
    return validate_options(options_class, kept, owner=config["method"]).model_dump(mode="json")


def options_for_device(device: torch.device, config: Mapping[str, Any]) -> dict[str, Any]:
    """The options of a saved model; numbers that this device cannot compute with give way to its own, for good."""
    options = saved_options(config)
    return {**options, "precision": "auto"} if options["precision"] == FP8 and not has_float8(device) else options


def select_by_prefix(tensors: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    """The tensors whose names begin with a prefix, without it."""
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}


def load_saved_backbone(saved: Mapping[str, str], folder: Path, given: str | Path | None) -> Backbone:
    """The very backbone that a model was trained on, by its hash."""
    packaged = list_packaged().get(saved["name"])
    place = given or (packaged if packaged and sha256_of(packaged) == saved["sha256"] else saved["path"])
    if given is None and not Path(place).is_file():
        raise ModelFolderError(f"the backbone of '{folder}' is no longer at '{place}'; say where it is with --backbone")
    found = load_backbone(place)
    if found.sha256 != saved["sha256"]:
        raise ModelFolderError(f"'{folder}' was trained on another '{saved['name']}': the backbone's hash differs")
    return found
