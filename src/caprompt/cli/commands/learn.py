"""The command `learn`: teach a new model, one that exists, or one whose last call was stopped."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from caprompt.cli import arguments
from caprompt.cli.arguments import Config, Device, Set, SkipBad
from caprompt.cli.console import err, out, print_protocol_warning, print_skipped
from caprompt.errors import InputError, OptionError, StoppedError

if TYPE_CHECKING:
    from caprompt.classifier import ContinualClassifier

__all__ = ["learn"]


def learn(
    model: Path,
    source: Path,
    *,
    method: str | None = None,
    backbone: str | None = None,
    seed: int | None = None,
    resume: bool = False,
    restart: bool = False,
    skip_bad: SkipBad = False,
    config: Config = None,
    set_: Set = None,
    device: Device = "auto",
) -> None:
    """Teach a model new classes, or more images of known ones. A model that does not exist yet is begun.

    Examples:

        caprompt learn pets photos/week1
        caprompt learn pets photos/week2 --skip-bad
        caprompt learn birds birds.csv --set epochs=20

    Parameters
    ----------
    model
        The model's folder.
    source
        A folder with a sub-folder of images per class, or a CSV of path,label.
    method
        For a new model: a method's name.
    backbone
        For a new model: a backbone's name or file. For an old one: where the backbone's file is now.
    seed
        For a new model: everything random follows from it.
    resume
        Go on with a call that was stopped, to the very same model.
    restart
        Give up a call that was stopped, and begin it anew.
    """
    from caprompt.callbacks.progress_bar import ProgressBar

    given = arguments.collect_settings(config, set_ or [])
    given |= {name: value for name, value in {"method": method, "backbone": backbone, "seed": seed}.items() if value is not None}
    classifier = open_model(model, given, resume, restart, device)
    before, calls = len(classifier.classes), classifier.calls
    try:
        with ProgressBar(err) as listen:
            samples = classifier.learn(source, folder=model, resume=resume, skip_bad=skip_bad, listen=listen)
    except KeyboardInterrupt:
        raise StoppedError(interrupt_message(model, calls)) from None
    print_skipped(samples.skipped)
    print_protocol_warning(classifier)
    new = classifier.classes[before:]
    known = [name for name in samples.classes if name not in new]
    learned = [f"new: {', '.join(new)}"] * bool(new) + [f"more of: {', '.join(known)}"] * bool(known)
    sentence = f"Learned {len(samples)} images ({'; '.join(learned)}). '{model}' now knows {len(classifier.classes)} classes."
    out.print(sentence)


def open_model(folder: Path, given: Mapping[str, Any], resume: bool, restart: bool, device: str) -> ContinualClassifier:
    """The model in a folder, or a new one with these settings; settings of training belong to the model's beginning."""
    from caprompt import checkpoint, methods
    from caprompt.checkpoint.model import has_stopped_call
    from caprompt.classifier import ContinualClassifier
    from caprompt.experiments.config import split_settings

    if resume:
        return resumable(folder, given, device)
    if not restart and has_stopped_call(folder):
        raise InputError(f"learning was stopped in '{folder}'; go on with it with --resume, or give it up with --restart")
    if checkpoint.exists(folder):
        for name in given:
            if name != "backbone":
                raise OptionError(f"'{folder}' exists, and '{name}' can only be set when a model is begun")
        return ContinualClassifier.load(folder, backbone=given.get("backbone"), device=device)
    if folder.exists() and not is_unfinished_folder(folder):
        raise InputError(f"'{folder}' exists but is not a caprompt model; choose another name")
    method = str(given.get("method", "caprompt"))
    known = list(methods.get_method(method).options_class.model_fields)
    chosen, options = split_settings(given, ["method", "backbone", "seed"], known, owner=method)
    if "backbone" in chosen:
        chosen["backbone"] = str(chosen["backbone"])
    return ContinualClassifier(device=device, **chosen, **options)


def resumable(folder: Path, given: Mapping[str, Any], device: str) -> ContinualClassifier:
    """The model whose learning was stopped."""
    from caprompt.checkpoint.model import has_stopped_call
    from caprompt.classifier import ContinualClassifier

    if given:
        raise OptionError(f"a stopped call goes on as it began; leave out {', '.join(sorted(given))}")
    if not has_stopped_call(folder):
        raise InputError(f"nothing was stopped in '{folder}', so there is nothing to resume; learn without --resume")
    return ContinualClassifier.unfinished(folder, device=device) or ContinualClassifier.load(folder, device=device)


def is_unfinished_folder(folder: Path) -> bool:
    """Is there nothing in this folder, or only what a stopped first call left?"""
    from caprompt.checkpoint.model import IN_PROGRESS

    return folder.is_dir() and all(path.name in {IN_PROGRESS, ".next", ".ready"} for path in folder.iterdir())


def interrupt_message(folder: Path, calls_before: int) -> str:
    """What Ctrl-C during `learn` has left, in a sentence."""
    from caprompt import checkpoint
    from caprompt.checkpoint.model import has_stopped_call

    if has_stopped_call(folder):
        return "Stopped; --resume goes on after the last whole epoch."
    if checkpoint.exists(folder) and checkpoint.read_config(folder)["calls"] > calls_before:
        return f"Stopped, but everything had been learned and saved in '{folder}' already."
    return "Stopped before the first epoch was over; nothing was changed."
