"""The command `run`: a class-incremental experiment, for one or several seeds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Parameter
from rich.console import Console

from caprompt.cli import arguments
from caprompt.cli.arguments import Config, Device, Set, SkipBad
from caprompt.cli.console import err, out, print_skipped, print_warnings
from caprompt.cli.processes import is_first_process, join_processes
from caprompt.errors import OptionError, ProcessLostError, StoppedError
from caprompt.protocols import parse_kind, require_same_protocol

if TYPE_CHECKING:
    from caprompt.callbacks.events import Callback
    from caprompt.experiments.run_folder import RunResult

__all__ = ["run"]

CONTINUE = "the same command with --resume continues after the last complete epoch."


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
    track: list[Literal["wandb", "trackio", "tensorboard", "mlflow"]] | None = None,
    tensorboard: bool = False,
    skip_bad: SkipBad = False,
    config: Config = None,
    set_: Set = None,
    device: Device = "auto",
) -> None:
    """Run a class-incremental experiment; by default, beetles in four tasks on the embedded backbone.

    Examples:

        caprompt run
        caprompt run --dataset photos --tasks 1,4,2,3 --set epochs=10
        caprompt run --method sequential-prompt --seeds 3
        caprompt run --joint --method finetune
        caprompt run --resume
        torchrun --nproc-per-node 4 -m caprompt run

    Parameters
    ----------
    dataset
        Name of a dataset (see `caprompt datasets`), folder with a sub-folder per class, or CSV file of path,label.
    method
        Name of a method (see `caprompt methods`).
    backbone
        Name of a backbone (see `caprompt backbones`) or weights file.
    preset
        Named settings: default is recommended, paper is as in each method's paper, budget the same effort for all methods.
    tasks
        Number of tasks (5), their sizes (1,4,2,3), or class names (cat,dog;cow).
    order
        Class order: shuffled by the seed, or natural.
    seed
        First seed.
    seeds
        Number of seeds to run, one after another.
    validation
        Fraction of the training images to hold out and test on instead of the test images.
    give_task
        Give the method the true task of each test image (appendix table of the paper); results are marked.
    protocol
        honest, or released: with the batch leak of the authors' code, to compare with published tables; results are marked.
    joint
        Learn all classes at once, the upper bound of a method; accuracy is still reported per task.
    out_folder
        Folder of the run; by default a new one under runs/.
    resume
        Resume a stopped run; the results will be the same as without the stop.
    watch
        Print the accuracy curve after each task.
    track
        Log losses, metrics and settings to this tracker, on this machine unless it is configured otherwise; may be repeated.
    tensorboard
        The same as --track tensorboard.
    """
    flags = {"dataset": dataset, "method": method, "backbone": backbone, "order": order, "seed": seed, "validation": validation}
    settings = {
        **arguments.collect_settings(config, set_ or []),
        **{name: value for name, value in flags.items() if value is not None},
    }
    if tasks is not None:
        settings["tasks"] = arguments.parse_tasks(tasks)
    if protocol is not None:
        settings["protocol"] = protocol
    settings |= {name: True for name, value in {"give_task": give_task, "joint": joint}.items() if value}
    with join_processes(device) as own_device:
        try:
            trackers = [*(track or []), *(["tensorboard"] if tensorboard else [])] if is_first_process() else []
            run_seeds(settings, preset, seeds, out_folder, resume, skip_bad, own_device, out, watch=watch, track=trackers)
        except KeyboardInterrupt:
            raise StoppedError(f"Stopped; {CONTINUE}") from None
        except ProcessLostError as error:
            raise ProcessLostError(f"{error}; {CONTINUE}") from error


def run_seeds(
    settings: Mapping[str, Any],
    preset_name: str,
    seeds: int,
    folder: Path | None,
    resume: bool,
    skip_bad: bool,
    device: str,
    console: Console,
    *,
    watch: bool = False,
    track: Sequence[str] = (),
) -> list[RunResult]:
    """Run an experiment per seed and print the results.

    With `watch` the accuracy curve is printed after each task; `track` names experiment trackers.
    """
    from caprompt.callbacks.progress_bar import ProgressBar
    from caprompt.callbacks.terminal_curve import TerminalCurve
    from caprompt.callbacks.tracking import make_tracker
    from caprompt.cli.tables import make_run_table, make_seeds_table
    from caprompt.experiments.config import build_run_config, load_preset_settings
    from caprompt.experiments.execution import run_experiment
    from caprompt.experiments.run_folder import choose_run_folder, format_run_title, read_plan
    from caprompt.utils.communication import get_communicator

    if seeds < 1:
        raise OptionError(f"option 'seeds' must be at least 1, not {seeds}")
    config = build_run_config({**load_preset_settings(preset_name, settings), **settings})
    results: dict[int, RunResult] = {}
    for seed in range(config.seed, config.seed + seeds):
        seeded = config.model_copy(update={"seed": seed})
        run_folder = choose_run_folder(seeded, folder, resume, several=seeds > 1)
        run_folder = Path(get_communicator().gather(str(run_folder))[0])  # others may see one that the first has just made
        callbacks: list[Callback] = [TerminalCurve(console)] if watch else []
        read_config = partial(_read_flat_config, run_folder)
        trackers = [make_tracker(name, run_folder, read_config) for name in dict.fromkeys(track)]
        with ExitStack() as stack:
            callbacks += [stack.enter_context(tracker) for tracker in trackers]
            progress_bar = stack.enter_context(ProgressBar(err))
            results[seed] = run_experiment(
                seeded, run_folder, resume=resume, skip_bad=skip_bad, device=device, callbacks=[progress_bar, *callbacks]
            )
            for tracker in trackers:
                tracker.log_summary(results[seed].summary())
        plan = read_plan(run_folder)
        print_skipped(plan["skipped"])
        print_warnings(plan.get("warnings", []))
        console.print(make_run_table(results[seed]))
        console.print(f"saved in {run_folder}", soft_wrap=True)
    console.print(make_seeds_table(results))
    console.print(f"{format_run_title(config)} on {config.dataset}, backbone {config.backbone}", soft_wrap=True)
    protocol = require_same_protocol(result.protocol for result in results.values())
    console.print(f"protocol {protocol}", style="dim" if parse_kind(protocol) == "honest" else "bold yellow")
    return list(results.values())


def _read_flat_config(folder: Path) -> dict[str, Any]:
    """Return the settings of a run and every option of its method, for a tracker."""
    from caprompt.experiments.run_folder import read_plan

    plan = read_plan(folder)
    settings = {name: value for name, value in plan["config"].items() if name != "options"}
    return {**settings, **plan["options"], "folder": folder.name}
