"""Opening a model folder to learn: a new model, one that exists, or one whose last call was stopped."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from caprompt import checkpoint, methods
from caprompt.checkpoint.model import IN_PROGRESS, call_was_stopped
from caprompt.classifier import ContinualClassifier
from caprompt.cli import arguments
from caprompt.errors import InputError, OptionError

__all__ = ["after_interrupt", "open_for_learning"]


def open_for_learning(folder: Path, given: Mapping[str, Any], resume: bool, restart: bool, device: str) -> ContinualClassifier:
    """The model in a folder, or a new one with these settings; settings of training belong to the model's beginning."""
    if resume:
        return resumable(folder, given, device)
    if not restart and call_was_stopped(folder):
        raise InputError(f"learning was stopped in '{folder}'; go on with it with --resume, or give it up with --restart")
    if checkpoint.exists(folder):
        for name in given:
            if name != "backbone":
                raise OptionError(f"'{folder}' exists, and '{name}' can only be set when a model is begun")
        return ContinualClassifier.load(folder, backbone=given.get("backbone"), device=device)
    if folder.exists() and not only_leftovers(folder):
        raise InputError(f"'{folder}' exists but is not a caprompt model; choose another name")
    method = str(given.get("method", "caprompt"))
    known = list(methods.find(method).options_class.model_fields)
    chosen, options = arguments.divided(given, ["method", "backbone", "seed"], known, owner=method)
    if "backbone" in chosen:
        chosen["backbone"] = str(chosen["backbone"])
    return ContinualClassifier(device=device, **chosen, **options)


def resumable(folder: Path, given: Mapping[str, Any], device: str) -> ContinualClassifier:
    """The model whose learning was stopped."""
    if given:
        raise OptionError(f"a stopped call goes on as it began; leave out {', '.join(sorted(given))}")
    if not call_was_stopped(folder):
        raise InputError(f"nothing was stopped in '{folder}', so there is nothing to resume; learn without --resume")
    return ContinualClassifier.unfinished(folder, device=device) or ContinualClassifier.load(folder, device=device)


def only_leftovers(folder: Path) -> bool:
    """Is there nothing in this folder, or only what a stopped first call left?"""
    return folder.is_dir() and all(path.name in {IN_PROGRESS, ".next", ".ready"} for path in folder.iterdir())


def after_interrupt(folder: Path, calls_before: int) -> str:
    """What Ctrl-C during `learn` has left, in a sentence."""
    if call_was_stopped(folder):
        return "Stopped; --resume goes on after the last whole epoch."
    if checkpoint.exists(folder) and checkpoint.read_config(folder)["calls"] > calls_before:
        return f"Stopped, but everything had been learned and saved in '{folder}' already."
    return "Stopped before the first epoch was over; nothing was changed."
