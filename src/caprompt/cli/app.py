"""The command line: parse, call the library, print.

Heavy imports sit inside the commands, so that `caprompt --help` answers at once.
"""

from __future__ import annotations

import json
import sys
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import App, CycloptsError, Parameter

from caprompt import __version__
from caprompt.cli import arguments
from caprompt.cli.commands import audit, listings, report, reproduce, results
from caprompt.cli.console import err, out, tell_skipped, tell_warnings
from caprompt.cli.flags import AsJson, Config, Cycles, Device, Set, SkipBad
from caprompt.errors import CapromptError, InputError, StoppedError
from caprompt.protocols import HONEST, warning

if TYPE_CHECKING:
    from caprompt.classifier import ContinualClassifier

__all__ = ["app", "main"]

HELP = """Learn new image classes as they come, without forgetting and without keeping images.

See it work, offline, in minutes:

    caprompt run

Teach it your own photos, a folder per class, whenever there are new ones:

    caprompt learn pets photos/week1
    caprompt learn pets photos/week2
    caprompt predict pets cat.jpg
    caprompt evaluate pets photos/test
"""

app = App(
    name="caprompt",
    help=HELP,
    version=__version__,
    help_format="markdown",
    default_parameter=Parameter(negative=()),
    suppress_keyboard_interrupt=False,  # `main` answers Ctrl-C itself
)
COMMANDS = (audit.audit, report.report, reproduce.reproduce, results.results)
for command in (*COMMANDS, listings.methods, listings.backbones, listings.datasets):
    app.command(command)


@app.command
def run(
    *,
    dataset: str | None = None,
    method: str | None = None,
    backbone: str | None = None,
    preset: str = "default",
    tasks: str | None = None,
    order: Literal["shuffled", "natural"] | None = None,
    seed: int | None = None,
    seeds: int = 1,
    validation: float | None = None,
    give_task: bool = False,
    protocol: Literal["honest", "released"] | None = None,
    joint: bool = False,
    out_folder: Annotated[Path | None, Parameter(name="--out")] = None,
    resume: bool = False,
    watch: bool = False,
    tensorboard: bool = False,
    skip_bad: SkipBad = False,
    config: Config = None,
    set_: Set = None,
    device: Device = "auto",
) -> None:
    """Run a whole class-incremental experiment; with no options, digits in five tasks on the embedded backbone.

    Examples:

        caprompt run
        caprompt run --dataset photos --tasks 1,4,2,3 --set epochs=10
        caprompt run --method sequential-prompt --seeds 3
        caprompt run --joint --method finetune
        caprompt run --resume

    Parameters
    ----------
    dataset
        A data set's name (see `caprompt datasets`), a folder with a sub-folder per class, or a CSV.
    method
        A method's name (see `caprompt methods`).
    backbone
        A backbone's name (see `caprompt backbones`) or a checkpoint file.
    preset
        Settings by name: default is what we recommend, paper what each method's authors did, budget the same effort for all.
    tasks
        Number of tasks (5), their sizes (1,4,2,3), or class names (cat,dog;cow).
    order
        Class order: shuffled by the seed, or natural.
    seed
        The first seed.
    seeds
        How many seeds to run, one after another.
    validation
        Hold out this share of the training images and test on them instead.
    give_task
        Tell the method each test image's true task (the paper's appendix table); results are marked as such.
    protocol
        honest, or released: with the leak of the authors' program, to compare with published tables; results are marked.
    joint
        Learn all classes at once, the upper bound of a method; accuracy is still told by task.
    out_folder
        Where the run is kept; by default a new folder under runs/.
    resume
        Go on with a stopped run to the very same end.
    watch
        Draw the accuracy curve in the terminal after each task.
    tensorboard
        Write figures for TensorBoard into the run's folder; needs the extra caprompt[track].
    """
    from caprompt.experiments.config import run_seeds

    flags = {"dataset": dataset, "method": method, "backbone": backbone, "order": order, "seed": seed, "validation": validation}
    given = {**arguments.gathered(config, set_ or []), **{name: value for name, value in flags.items() if value is not None}}
    if tasks is not None:
        given["tasks"] = arguments.parse_tasks(tasks)
    if protocol is not None:
        given["protocol"] = protocol
    given |= {name: True for name, chosen in {"give_task": give_task, "joint": joint}.items() if chosen}
    try:
        run_seeds(given, preset, seeds, out_folder, resume, skip_bad, device, out, watch=watch, tensorboard=tensorboard)
    except KeyboardInterrupt:
        raise StoppedError("Stopped; the same command with --resume goes on after the last whole epoch.") from None


@app.command
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
    from caprompt.callbacks.progress_bar import Display
    from caprompt.cli.commands.learn import after_interrupt, open_for_learning

    given = arguments.gathered(config, set_ or [])
    given |= {name: value for name, value in {"method": method, "backbone": backbone, "seed": seed}.items() if value is not None}
    classifier = open_for_learning(model, given, resume, restart, device)
    before, calls = len(classifier.classes), classifier.calls
    try:
        with Display(err) as listen:
            samples = classifier.learn(source, folder=model, resume=resume, skip_bad=skip_bad, listen=listen)
    except KeyboardInterrupt:
        raise StoppedError(after_interrupt(model, calls)) from None
    tell_skipped(samples.skipped)
    _warn_of(classifier)
    new = classifier.classes[before:]
    known = [name for name in samples.classes if name not in new]
    learned = [f"new: {', '.join(new)}"] * bool(new) + [f"more of: {', '.join(known)}"] * bool(known)
    sentence = f"Learned {len(samples)} images ({'; '.join(learned)}). '{model}' now knows {len(classifier.classes)} classes."
    out.print(sentence)


@app.command
def predict(
    model: Path,
    *images: Path,
    top: int = 3,
    as_json: AsJson = False,
    skip_bad: SkipBad = False,
    cycles: Cycles = None,
    backbone: str | None = None,
    device: Device = "auto",
) -> None:
    """Name what is on images: files, or folders of them.

    Examples:

        caprompt predict pets cat.jpg
        caprompt predict pets holiday/ --json --top 5
        caprompt predict pets cat.jpg --cycles auto

    Parameters
    ----------
    model
        The model's folder.
    images
        Image files, or folders of them at any depth.
    top
        How many classes to name per image.
    backbone
        Where the backbone's file is, if it has moved.
    """
    from caprompt.classifier import ContinualClassifier
    from caprompt.cli.commands.predict import name_pictures, pictures_in
    from caprompt.cli.tables import prediction_table

    classifier = ContinualClassifier.load(model, backbone=backbone, device=device)
    named, skipped = name_pictures(classifier, pictures_in(images), top, skip_bad, _cycles(cycles))
    tell_skipped(skipped)
    mark = _warn_of(classifier)
    if as_json:
        print(json.dumps([{"image": str(path), **found.as_dict(), **mark} for path, found in named], indent=2))
    else:
        out.print(prediction_table([str(path) for path, _ in named], [found for _, found in named], top))


@app.command
def evaluate(
    model: Path,
    source: Path,
    *,
    as_json: AsJson = False,
    skip_bad: SkipBad = False,
    cycles: Cycles = None,
    give_task: bool = False,
    backbone: str | None = None,
    device: Device = "auto",
) -> None:
    """Measure a model on labelled images it has not learned from.

    Examples:

        caprompt evaluate pets photos/test
        caprompt evaluate pets photos/test --json --cycles 3

    Parameters
    ----------
    model
        The model's folder.
    source
        A folder with a sub-folder of images per class, or a CSV of path,label.
    give_task
        Tell the method each image's true task: what its prompts can do, not what a user would get.
    backbone
        Where the backbone's file is, if it has moved.
    """
    from caprompt.classifier import ContinualClassifier
    from caprompt.cli.tables import evaluation_table

    classifier = ContinualClassifier.load(model, backbone=backbone, device=device)
    found = classifier.evaluate(source, skip_bad=skip_bad, give_task=give_task, **_cycles(cycles))
    tell_skipped(found.skipped)
    _warn_of(classifier)
    if as_json:
        print(json.dumps(found.as_dict(), indent=2))
    else:
        out.print(evaluation_table(found))
        out.print(f"task identified in {found.task_identification:.1f} %, {found.mean_passes:.2f} passes per image")
        if found.protocol != HONEST:
            out.print(f"protocol {found.protocol}", soft_wrap=True)


def _cycles(text: str | None) -> dict[str, Any]:
    return {} if text is None else {"cycles": arguments.parse_value(text)}


def _warn_of(model: ContinualClassifier) -> dict[str, str]:
    """Say so on stderr if a model's answers leak; returns the mark that its JSON gets."""
    sentence = warning(model.method.options)
    tell_warnings([sentence] if sentence else [])
    return {"protocol": "released"} if sentence else {}


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line; bad input is one sentence and status 2, a failure 1, Ctrl-C 130."""
    sys.exit(_status(sys.argv[1:] if arguments is None else arguments))


def _status(arguments: Sequence[str]) -> int:
    # Pictures that are too large are refused in a sentence of our own.
    warnings.filterwarnings("ignore", message="Image size .* exceeds limit")
    try:
        app(arguments, exit_on_error=False, print_error=False, result_action="return_value")
    except CycloptsError as error:
        return _complain(" ".join(str(error).split()), InputError.exit_code)
    except CapromptError as error:
        return _complain(str(error), error.exit_code)
    except OSError as error:
        return _complain(f"'{error.filename}' cannot be used: {error.strerror}", InputError.exit_code)
    except KeyboardInterrupt:
        return _complain("Stopped.", StoppedError.exit_code)
    return 0


def _complain(sentence: str, status: int) -> int:
    err.print(f"caprompt: {sentence}", soft_wrap=True)
    return status
