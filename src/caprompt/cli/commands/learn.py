"""The command `learn`: train a new or a saved model, or resume a call that was stopped."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from caprompt.cli import arguments
from caprompt.cli.arguments import Config, Device, Set, SkipBad
from caprompt.cli.backbone_choice import choose_backbone, require_local_backbone
from caprompt.cli.console import err, out, print_protocol_warning, print_skipped
from caprompt.cli.processes import join_processes
from caprompt.errors import InputError, OptionError, ProcessLostError, StoppedError
from caprompt.utils.text import join_names

if TYPE_CHECKING:
    from caprompt.callbacks.events import Event
    from caprompt.classifier import ContinualClassifier
    from caprompt.methods.options import Options

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
    again: bool = False,
    skip_bad: SkipBad = False,
    yes: bool = False,
    offline: bool = False,
    config: Config = None,
    set_: Set = None,
    device: Device = "auto",
) -> None:
    """Train a model on new classes, or on more images of known ones; a model that does not exist is created.

    Method, seed and options are those of the first call; later calls need not give them, and cannot change them.

    Examples:

        caprompt learn pets photos/week1
        caprompt learn pets photos/week2 --skip-bad
        caprompt learn birds birds.csv --set epochs=20
        torchrun --nproc-per-node 4 -m caprompt learn birds birds.csv

    Parameters
    ----------
    model
        Folder of the model.
    source
        Folder with a sub-folder of images per class, CSV file of path,label, or export of FiftyOne or Label Studio (JSON or CSV).
    method
        For a new model: name of a method (see `caprompt methods`).
    backbone
        For a new model: name of a backbone or weights file; without it, `caprompt backbones` says which one is chosen.
        For a saved one: the weights file, if it was moved.
    seed
        For a new model: random seed.
    resume
        Resume a call that was stopped; the model will be the same as without the stop.
    restart
        Discard a call that was stopped, and start it again.
    again
        Learn images once more that were learned before; they are left out otherwise.
    yes
        For a new model: download a better backbone without asking.
    offline
        For a new model: download no backbone; the best one on this machine is used.
    """
    if resume and restart:
        raise OptionError("a stopped call is either resumed or discarded; give --resume or --restart, not both")
    settings = arguments.collect_settings(config, set_ or [])
    settings |= {name: value for name, value in {"method": method, "backbone": backbone, "seed": seed}.items() if value is not None}
    if offline and "backbone" in settings:
        require_local_backbone(str(settings["backbone"]))

    with join_processes(device) as own_device:
        choose = partial(choose_once, source, own_device, yes, offline)
        classifier = open_model(model, settings, resume, restart, own_device, choose)
        learn_source(classifier, model, source, resume, skip_bad, again)


def choose_once(source: Path, device: str, yes: bool, offline: bool) -> str:
    """Return the backbone for a new model; of several processes, the first one asks and downloads."""
    from caprompt.data.sources import read_source
    from caprompt.utils.communication import get_communicator

    read_source(source)  # what is wrong with it is to be said before anything is asked or downloaded
    communicator = get_communicator()
    name: str = communicator.gather("" if communicator.rank else choose_backbone(device, yes=yes, offline=offline))[0]
    return name


def learn_source(classifier: ContinualClassifier, model: Path, source: Path, resume: bool, skip_bad: bool, again: bool) -> None:
    """Train a model on the images of a source, save it in its folder, and print what was learned."""
    from caprompt.callbacks.progress_bar import ProgressBar

    num_known, num_calls = len(classifier.classes), classifier.num_calls
    try:
        with ProgressBar(err) as progress_bar:
            callbacks = (print_effort, progress_bar)
            samples = classifier.learn(
                source, checkpoint_dir=model, resume=resume, skip_bad=skip_bad, again=again, callbacks=callbacks
            )
    except KeyboardInterrupt:
        raise StoppedError(describe_interrupt(model, num_calls)) from None
    except ProcessLostError as error:
        state = describe_interrupt(model, num_calls)
        raise ProcessLostError(f"{error}: {state[0].lower()}{state[1:]}") from error
    print_skipped(samples.skipped)
    print_protocol_warning(classifier)
    new = classifier.classes[num_known:]
    known = [name for name in samples.classes if name not in set(new)]
    learned = [f"new: {join_names(new)}"] * bool(new) + [f"more of: {join_names(known)}"] * bool(known)
    total = len(classifier.classes)
    images, classes = f"{len(samples)} image{'s' * (len(samples) != 1)}", f"{total} class{'es' * (total != 1)}"
    out.print(f"Learned {images} ({'; '.join(learned)}). '{model}' now knows {classes}.")


def print_effort(event: Event) -> None:
    """Print how long and how fast a task will be trained, where that was chosen for its number of images."""
    from caprompt.callbacks.events import LearnStarted

    if isinstance(event, LearnStarted) and event.effort:
        err.print(f"Training: {event.effort}", soft_wrap=True)


def open_model(
    folder: Path,
    settings: Mapping[str, Any],
    resume: bool,
    restart: bool,
    device: str,
    choose_backbone: Callable[[], str] | None = None,
) -> ContinualClassifier:
    """Load the model in a folder, or create one with these settings; a saved model takes no others than its own.

    A new model whose backbone is not among the settings gets the one that `choose_backbone` returns, or the embedded one.
    """
    from caprompt import checkpoint
    from caprompt.checkpoint.hub import check_local
    from caprompt.checkpoint.model import has_stopped_call
    from caprompt.classifier import ContinualClassifier

    backbone = str(settings["backbone"]) if "backbone" in settings else None
    if resume:
        return _open_stopped_model(folder, settings, backbone, device)
    if restart and not has_stopped_call(folder):
        raise InputError(f"nothing was stopped in '{folder}', so there is nothing to restart; learn without --restart")
    if not restart and has_stopped_call(folder):
        raise InputError(f"learning was stopped in '{folder}'; resume it with --resume, or discard it with --restart")
    if checkpoint.exists(folder):
        changes = find_changes(folder, settings)
        if changes:
            values, names = (", ".join(f"{name}={value}" for name, value in changes.items()), "', '".join(changes))
            raise OptionError(f"'{folder}' exists, with {values}; '{names}' can only be set for a new model")
        return ContinualClassifier.load(folder, backbone=backbone, device=device)
    if folder.exists() and not is_reusable_folder(folder):
        raise InputError(f"'{folder}' exists but is not a caprompt model; choose another name")
    check_local(folder)
    return _create_model(settings, device, choose_backbone)


def _create_model(settings: Mapping[str, Any], device: str, choose_backbone: Callable[[], str] | None) -> ContinualClassifier:
    """Create a model; the backbone is chosen last, once all else is known to be valid."""
    from caprompt import methods
    from caprompt.classifier import ContinualClassifier
    from caprompt.experiments.config import split_settings
    from caprompt.methods.options import validate_options

    method = str(settings.get("method", "caprompt"))
    options_class = methods.get_method(method).options_class
    parameters, options = split_settings(settings, ["method", "backbone", "seed"], list(options_class.model_fields), owner=method)
    validate_options(options_class, options, owner=method)
    if "backbone" in parameters:
        parameters["backbone"] = str(parameters["backbone"])
    elif choose_backbone is not None:
        parameters["backbone"] = choose_backbone()
    return ContinualClassifier(device=device, **parameters, **options)


def _open_stopped_model(folder: Path, settings: Mapping[str, Any], backbone: str | None, device: str) -> ContinualClassifier:
    """Load the model whose call of `learn` was stopped."""
    from caprompt.checkpoint.model import IN_PROGRESS, has_stopped_call
    from caprompt.classifier import ContinualClassifier

    if not has_stopped_call(folder):
        raise InputError(f"nothing was stopped in '{folder}', so there is nothing to resume; learn without --resume")
    changes = find_changes(folder / IN_PROGRESS, settings)
    if changes:
        raise OptionError(f"a stopped call is resumed with its own settings; leave out {', '.join(changes)}")
    stopped = ContinualClassifier.load_stopped(folder, backbone=backbone, device=device)
    return stopped or ContinualClassifier.load(folder, backbone=backbone, device=device)


def find_changes(folder: Path, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the saved values of those settings that would change a saved model; its backbone is checked when it is loaded.

    So a command can be given again as it was, for the next folder or to resume it.
    """
    if not settings.keys() - {"backbone"}:
        return {}
    from caprompt import checkpoint, methods
    from caprompt.checkpoint.model import explain_damage, get_saved_options
    from caprompt.experiments.config import split_settings

    config = checkpoint.read_config(folder)
    method = config["method"]
    if settings.get("method", method) != method:
        return {"method": method}
    with explain_damage(folder):
        saved = get_saved_options(config)
    parameters, options = split_settings(settings, ["method", "backbone", "seed"], list(saved), owner=method)
    options_class = methods.get_method(method).options_class
    values = {name: normalize_option(options_class, saved, name, value, owner=method) for name, value in options.items()}
    own = {**saved, "method": method, "seed": config["seed"]}
    return {name: own[name] for name, value in {**values, **parameters}.items() if name in own and value != own[name]}


def normalize_option(options_class: type[Options], saved: Mapping[str, Any], name: str, value: object, owner: str) -> object:
    """Return an option's value as a model with the saved options would store it; raise if no model can have it.

    A value that is valid by itself, but not with the saved options, is returned as it would be stored without these, or as it is
    if another option of these must be set with it.
    """
    from caprompt.methods.options import validate_options

    for others in (saved, {}):
        try:
            return validate_options(options_class, {**others, name: value}, owner=owner).model_dump(mode="json")[name]
        except OptionError as error:
            if not others and error.option == name:
                raise
    return value


def is_reusable_folder(folder: Path) -> bool:
    """Return whether a folder is empty, or holds only the files of a first call that was stopped."""
    from caprompt.checkpoint.model import find_foreign_file

    return folder.is_dir() and find_foreign_file(folder) is None


def describe_interrupt(folder: Path, calls_before: int) -> str:
    """Return a sentence on the state that Ctrl-C during `learn` has left."""
    from caprompt import checkpoint
    from caprompt.checkpoint.model import has_stopped_call

    if has_stopped_call(folder):
        return "Stopped; --resume continues after the last complete epoch."
    if checkpoint.exists(folder) and checkpoint.read_config(folder)["calls"] > calls_before:
        return f"Stopped, but the model had already been trained and saved in '{folder}'."
    return "Stopped before the end of the first epoch; nothing was changed."
