"""The command `run`: a whole class-incremental experiment, for one or several seeds."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Parameter
from rich.console import Console

from caprompt.cli import arguments
from caprompt.cli.arguments import Config, Device, Set, SkipBad
from caprompt.cli.console import err, out, print_skipped, print_warnings
from caprompt.errors import OptionError, StoppedError
from caprompt.protocols import kind, single

if TYPE_CHECKING:
    from caprompt.callbacks.events import Callback
    from caprompt.experiments.run_folder import RunResult

__all__ = ["run", "run_seeds"]


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
    flags = {"dataset": dataset, "method": method, "backbone": backbone, "order": order, "seed": seed, "validation": validation}
    given = {
        **arguments.collect_settings(config, set_ or []),
        **{name: value for name, value in flags.items() if value is not None},
    }
    if tasks is not None:
        given["tasks"] = arguments.parse_tasks(tasks)
    if protocol is not None:
        given["protocol"] = protocol
    given |= {name: True for name, chosen in {"give_task": give_task, "joint": joint}.items() if chosen}
    try:
        run_seeds(given, preset, seeds, out_folder, resume, skip_bad, device, out, watch=watch, tensorboard=tensorboard)
    except KeyboardInterrupt:
        raise StoppedError("Stopped; the same command with --resume goes on after the last whole epoch.") from None


def run_seeds(
    given: Mapping[str, Any],
    preset_name: str,
    seeds: int,
    folder: Path | None,
    resume: bool,
    skip_bad: bool,
    device: str,
    console: Console,
    *,
    watch: bool = False,
    tensorboard: bool = False,
) -> list[RunResult]:
    """Run one experiment per seed and print what came out; with `watch` also the accuracy curve after each task."""
    from caprompt.callbacks.events import compose
    from caprompt.callbacks.progress_bar import ProgressBar
    from caprompt.callbacks.tensorboard import TensorBoardWriter
    from caprompt.callbacks.terminal_curve import TerminalCurve
    from caprompt.cli.tables import run_table, seeds_table
    from caprompt.experiments.config import build_run_config, preset_settings
    from caprompt.experiments.execution import run_experiment
    from caprompt.experiments.run_folder import choose_run_folder, read_plan, run_title

    if seeds < 1:
        raise OptionError(f"option 'seeds' must be at least 1, not {seeds}")
    config = build_run_config({**preset_settings(preset_name, given), **given})
    found: dict[int, RunResult] = {}
    for seed in range(config.seed, config.seed + seeds):
        seeded = config.model_copy(update={"seed": seed})
        home = choose_run_folder(seeded, folder, resume, several=seeds > 1)
        others: list[Callback] = [TerminalCurve(console)] if watch else []
        if tensorboard:
            others.append(TensorBoardWriter(home / "tensorboard"))
        with ProgressBar(err) as display:
            listen = compose(display, *others)
            found[seed] = run_experiment(seeded, home, resume=resume, skip_bad=skip_bad, device=device, listen=listen)
        plan = read_plan(home)
        print_skipped(plan["skipped"])
        print_warnings(plan.get("warnings", []))
        console.print(run_table(found[seed]))
        console.print(f"saved in {home}", soft_wrap=True)
    console.print(seeds_table(found))
    console.print(f"{run_title(config)} on {config.dataset}, backbone {config.backbone}", soft_wrap=True)
    protocol = single(results.protocol for results in found.values())
    console.print(f"protocol {protocol}", style="dim" if kind(protocol) == "honest" else "bold yellow")
    return list(found.values())
