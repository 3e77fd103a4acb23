"""The command `reproduce`: run the experiments of a table or figure of the paper, and write it beside the published results."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Parameter
from rich.console import Console

from caprompt.cli import arguments
from caprompt.cli.arguments import Cluster, Cpus, Device, Gpus, Set
from caprompt.cli.console import err, out, print_warnings
from caprompt.errors import InputError, OptionError, StoppedError

if TYPE_CHECKING:
    from caprompt.distributed.jobs import Executor
    from caprompt.experiments.grid import Cell
    from caprompt.reproduce.evidence import Evidence

__all__ = ["reproduce"]

CELLS = "cells"  # sub-folder of the experiments, beside those of the scales


def reproduce(
    *targets: str,
    scale: str = "full",
    seeds: int | None = None,
    protocol: Literal["honest", "released"] = "honest",
    backbone: str | None = None,
    set_: Set = None,
    jobs: int | None = None,
    cluster: Cluster = None,
    cpus: Cpus = 1,
    gpus: Gpus = None,
    out_folder: Annotated[Path, Parameter(name="--out")] = Path("reproduced"),
    list_: Annotated[bool, Parameter(name="--list")] = False,
    device: Device = "auto",
) -> None:
    """Reproduce tables and figures of the paper, with our results beside the published ones.

    Every experiment is saved and run only once, also across targets; after a stop or kill, the same command continues.

    Examples:

        caprompt reproduce --list
        caprompt reproduce table3 theorem --scale tiny
        caprompt reproduce table1 --scale small --backbone deit_tiny.safetensors --jobs 4
        caprompt reproduce all
        caprompt reproduce all --cluster ray://head:10001 --gpus 0.25

    Parameters
    ----------
    targets
        Names of tables and figures (see --list), or all.
    scale
        full as in the paper, small with DeiT-Ti and fewer epochs, tiny with the embedded backbone on a few digits.
    seeds
        Number of seeds; more can be added later.
    protocol
        released runs CAPrompt with the batch leak of the authors' code, to compare with published tables; results are marked.
    backbone
        Backbone instead of that of the scale: a name or a weights file.
    jobs
        Number of experiments to run in parallel, a process each; 1 by default, on a cluster as many as it has room for.
    out_folder
        Folder for tables, figures and the experiments behind them.
    list_
        List the targets and the scales.
    """
    if list_ or not targets:
        _print_targets()
        return
    from caprompt.reproduce.plan import check_released, check_settings, plan_target
    from caprompt.reproduce.scales import get_scale
    from caprompt.reproduce.targets.registry import select_targets

    selected = select_targets(targets)
    settings = check_settings(arguments.collect_settings(None, set_ or []), selected)
    resolved_scale = get_scale(scale, backbone=backbone, seeds=seeds, settings=settings)
    if protocol == "released":
        selected = [check_released(target) for target in selected]
    cells_folder = out_folder / CELLS
    plans = [plan_target(target, resolved_scale, cells_folder, protocol) for target in selected]
    executor = _make_executor(cluster, cpus, gpus, jobs, device)
    _run_cells(plans, cells_folder, 1 if jobs is None or executor else jobs, device, executor)
    scale_folder = out_folder / (scale if protocol == "honest" else f"{scale}-released")
    for evidence, _ in plans:
        _present(evidence, scale_folder / evidence.target.name)


def _print_targets() -> None:
    """Print the targets and the scales."""
    from caprompt.cli.tables import make_table
    from caprompt.reproduce.scales import load_scales
    from caprompt.reproduce.targets.registry import ALL, TARGETS

    rows = [[name, target.title] for name, target in TARGETS.items()]
    out.print(make_table("targets", ["name", "description"], [*rows, [ALL, "all of these"]]))
    out.print(make_table("scales", ["name", "description"], [[name, scale.summary] for name, scale in load_scales().items()]))


def _make_executor(cluster: str | None, cpus: float, gpus: float | None, jobs: int | None, device: str) -> Executor | None:
    if cluster is None:
        if gpus is not None or cpus != 1:
            raise OptionError("--cpus and --gpus are for the workers of a cluster; name it with --cluster")
        return None
    from caprompt.distributed.clusters import make_executor

    return make_executor(cluster, cpus, 0 if device == "cpu" and gpus is None else gpus, jobs)


def _run_cells(plans: list[tuple[Evidence, list[Cell]]], folder: Path, jobs: int, device: str, executor: Executor | None) -> None:
    """Run every cell that is not done; a cell that several targets share is run once."""
    from caprompt.cli.grid_progress import GridProgressBar
    from caprompt.experiments.grid import is_done, run_grid
    from caprompt.reproduce.plan import explain_no_cells, merge_cells

    cells = merge_cells([cell for _, cells in plans for cell in cells])
    if not cells:
        raise InputError(explain_no_cells(plans[0][0]))
    done = sum(is_done(folder / cell.name, cell.measures) for cell in cells)
    try:
        with GridProgressBar(err, folder, len(cells), done) as progress:
            run_grid(cells, folder, jobs=jobs, device=device, progress=progress, executor=executor)
    except KeyboardInterrupt:
        raise StoppedError("Stopped; the same command continues where it stopped.") from None


def _present(evidence: Evidence, folder: Path) -> None:
    """Print the table of a target and write its files."""
    from caprompt.cli.tables import make_result_table
    from caprompt.reproduce.writers import write_target

    presentation = evidence.target.present(evidence)
    write_target(evidence, presentation, folder)
    table = make_result_table(presentation.table)
    full_width = out.measure(table, options=out.options.update_width(10_000)).maximum
    # A file or pipe has no width of its own: nothing is wrapped there.
    console = out if out.is_terminal else Console(width=full_width, markup=False, emoji=False, highlight=False)
    console.print(table)
    for note in presentation.table.notes:
        out.print(f"- {note}.", soft_wrap=True, style="dim")
    print_warnings([note for note in evidence.notes() if note.startswith("failed")])
    out.print(f"saved in {folder}", soft_wrap=True)
