"""Changes to a saved model: undo a lesson, rename, join and forget classes.

Each is atomic: a process that is killed leaves the folder as it was, or as it should be. Undoing restores the files of the version
before, byte for byte. The other edits are recorded like lessons and can be undone, except forgetting: after it, no file of the
folder has anything of the class, so earlier versions are deleted.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from caprompt import checkpoint
from caprompt.checkpoint.model import IN_PROGRESS, has_stopped_call
from caprompt.classifier.model import ContinualClassifier
from caprompt.classifier.state import NUM_VERSIONS
from caprompt.data.sources import Source
from caprompt.errors import InputError, ModelFolderError
from caprompt.utils.paths import expand_user

__all__ = ["STOPPED", "calibrate", "forget", "join", "rename", "undo"]

STOPPED: Mapping[str, Any] = {"kind": "stopped"}  # what `undo` returns if it discarded a call that was stopped


def undo(folder: str | Path) -> Mapping[str, Any]:
    """Undo the last lesson or edit of a saved model and return its record; a call of `learn` that was stopped is discarded."""
    folder = expand_user(folder)
    _require_model(folder)
    with checkpoint.lock_folder(folder):
        if has_stopped_call(folder):
            checkpoint.discard(folder / IN_PROGRESS)
            return STOPPED
        config = checkpoint.read_config(folder)
        lessons = config.get("lessons", [])
        if not checkpoint.list_versions(folder):
            if lessons and lessons[-1]["kind"] == "forget":
                raise InputError(f"forgetting a class cannot be undone, and neither can what '{folder}' learned before")
            if len(lessons) != 1 or config["calls"] != 1:
                raise InputError(f"no version before the last lesson of '{folder}' is kept, so it cannot be undone")
        checkpoint.discard(folder / IN_PROGRESS)  # left by a killed process; after the revert it would count as a stopped call
        checkpoint.revert(folder)
        return dict(lessons[-1]) if lessons else {"kind": "learn"}


def rename(folder: str | Path, old: str, new: str) -> ContinualClassifier:
    """Give a class of a saved model another name."""
    return _edit(folder, lambda model: model.rename(old, new))


def join(folder: str | Path, names: Sequence[str], into: str) -> ContinualClassifier:
    """Make one class of several classes of a saved model."""
    return _edit(folder, lambda model: model.join(names, into))


def forget(
    folder: str | Path,
    name: str,
    *,
    images: Source | None = None,
    approximate: bool = False,
    backbone: str | Path | None = None,
    device: str = "auto",
) -> ContinualClassifier:
    """Remove a class from a saved model, and every trace of it from its folder (see `ContinualClassifier.forget`)."""

    def remove(model: ContinualClassifier) -> None:
        model.forget(name, images=images, approximate=approximate)

    return _edit(folder, remove, keep_versions=0, backbone=backbone, device=device)


def calibrate(folder: str | Path, source: Source, *, skip_bad: bool = False, **loading: Any) -> ContinualClassifier:
    """Fit the scores of a saved model to labeled images that it has not learned."""
    return _edit(folder, lambda model: model.calibrate(source, skip_bad=skip_bad), **loading)


def _edit(
    folder: str | Path, change: Callable[[ContinualClassifier], object], *, keep_versions: int = NUM_VERSIONS, **loading: Any
) -> ContinualClassifier:
    folder = expand_user(folder)
    _require_model(folder)
    with checkpoint.lock_folder(folder):
        if has_stopped_call(folder):
            raise InputError(f"learning was stopped in '{folder}'; resume it first, or discard it with undo")
        checkpoint.discard(folder / IN_PROGRESS)  # of a call that has ended since
        model = ContinualClassifier.load(folder, **loading)
        change(model)
        model.save_locked(folder, keep_versions)
    return model


def _require_model(folder: Path) -> None:
    if not checkpoint.exists(folder) and not checkpoint.exists(folder / IN_PROGRESS):
        raise ModelFolderError(f"'{folder}' does not hold a caprompt model (it has no {checkpoint.CONFIG})")
