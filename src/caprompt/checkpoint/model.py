"""Saved models beyond their files: the stopped call of `learn`, the saved options, and the backbone of a model."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from caprompt import checkpoint, methods
from caprompt.backbones.registry import MODELS
from caprompt.backbones.weights import Backbone, list_packaged, load_backbone
from caprompt.errors import CapromptError, InputError, ModelFolderError, first_line
from caprompt.methods.base import Method
from caprompt.methods.options import validate_options
from caprompt.utils.devices import FP8, has_float8
from caprompt.utils.files import compute_sha256, finish_commit, write_json

__all__ = [
    "IN_PROGRESS",
    "check_dtypes",
    "check_growth",
    "check_removed",
    "explain_damage",
    "find_foreign_file",
    "finish_killed_save",
    "get_options_for_device",
    "get_saved_options",
    "has_stopped_call",
    "load_saved_backbone",
    "read_stopped_call",
    "record_evaluation",
    "select_by_prefix",
]

IN_PROGRESS = "in-progress"  # sub-folder of a model folder: checkpoint of the current call of `learn`, after a completed epoch
FEW_CLASSES, FEW_TASKS = 1000, 100  # up to these, the size of a method is not computed before it is built
SPARE_BYTES = 2**26  # that a method may take beyond its saved state


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


def finish_killed_save(folder: Path) -> None:
    """Do what a kill has left undone after a model was saved: move its files into place, remove the checkpoint and the lock."""
    with checkpoint.lock_folder(folder):
        finish_commit(folder)
        if not has_stopped_call(folder):
            checkpoint.discard(folder / IN_PROGRESS)


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


@contextmanager
def explain_damage(folder: Path) -> Iterator[None]:
    """Turn what a method raises for a state that does not fit it into a sentence about its folder."""
    try:
        yield
    except CapromptError:
        raise
    except (ArithmeticError, AttributeError, LookupError, MemoryError, OSError, RuntimeError, TypeError, ValueError) as error:
        reason = first_line(error)[:200]
        if "loading state_dict" in reason:  # a list of all names that torch did not expect or find
            reason = "its tensors do not fit its method and options"
        raise ModelFolderError(f"the model in '{folder}' is damaged ({reason}); restore the folder from a backup") from error


def check_growth(build: Callable[[], Method], task_sizes: Sequence[int], state: Mapping[str, Tensor]) -> None:
    """Raise ValueError if a method would take far more memory with these tasks than its saved state has.

    `build` makes an empty method. What a class and a task add is measured with two classes and two tasks.
    """
    num_classes, num_tasks = sum(task_sizes), len(task_sizes)
    if num_classes <= FEW_CLASSES and num_tasks <= FEW_TASKS:
        return
    one, two_classes, two_tasks = (_measure_state(build(), sizes) for sizes in ([1], [2], [1, 1]))
    per_class = two_classes - one
    needed = num_classes * per_class + num_tasks * (two_tasks - two_classes)
    saved = sum(tensor.nbytes for tensor in state.values())
    if needed > 2 * saved + SPARE_BYTES:
        raise ValueError(f"{num_classes} classes in {num_tasks} tasks need {needed:,} bytes, but {saved:,} were saved")


def _measure_state(method: Method, task_sizes: Sequence[int]) -> int:
    for size in task_sizes:
        method.begin_task(size, torch.Generator())
    return sum(tensor.nbytes for tensor in method.state().values())


def check_removed(method: Method) -> None:
    """Raise ValueError for a model without state that predictions need: it would predict with values that nobody has learned."""
    for name in sorted(method.removed_state):
        if not any(f"{name}.".startswith(f"{part}.") for part in method.learning_state):
            raise ValueError(f"it is without {name!r}, which is not only for learning")


def check_dtypes(method: Method, state: Mapping[str, Tensor]) -> None:
    """Raise ValueError for saved numbers of another kind than those that they were loaded into, such as complex ones."""
    for name, tensor in method.state().items():
        if state[name].dtype != tensor.dtype and not (state[name].is_floating_point() and tensor.is_floating_point()):
            raise ValueError(f"'{name}' is {state[name].dtype}, not {tensor.dtype}")


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
                f"'{folder}' needs the backbone {saved['name']!r} (SHA-256 {saved['sha256'][:16]}...), which is not part of it; "
                "get the weights file from its author, and pass it with backbone=..."
            )
        path = saved["name"]
    elif override is None and not _is_file(path):
        raise ModelFolderError(f"the backbone of '{folder}' is no longer at {str(path)!r}; say where it is with backbone=...")
    backbone = load_backbone(path)
    if backbone.sha256 != saved["sha256"]:
        raise ModelFolderError(f"'{folder}' was trained on another {saved['name']!r}: the backbone's hash differs")
    return backbone


def _is_file(path: str | Path) -> bool:
    """Return whether a file exists; not so if its name is one that no file can have."""
    try:
        return Path(path).is_file()
    except (OSError, ValueError):
        return False
