"""The command `reproduce`: run what a table or figure of the paper needs, and write it with our figures beside published ones."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Parameter
from rich.console import Console

from caprompt.cli import arguments
from caprompt.cli.arguments import Device, Set
from caprompt.cli.console import err, out, print_warnings
from caprompt.errors import InputError, StoppedError

if TYPE_CHECKING:
    from caprompt.experiments.grid import Cell
    from caprompt.reproduce.evidence import Evidence

__all__ = ["reproduce"]

CELLS = "cells"  # the folder of the experiments, beside those of the scales


def reproduce(
    *targets: str,
    scale: str = "full",
    seeds: int | None = None,
    protocol: Literal["honest", "released"] = "honest",
    backbone: str | None = None,
    set_: Set = None,
    jobs: int = 1,
    out_folder: Annotated[Path, Parameter(name="--out")] = Path("reproduced"),
    list_: Annotated[bool, Parameter(name="--list")] = False,
    device: Device = "auto",
) -> None:
    """Make tables and figures of the paper again, with our figures beside the published ones.

    Every experiment is kept and never run twice, also between targets; stopped or killed, the same command goes on.

    Examples:

        caprompt reproduce --list
        caprompt reproduce table3 theorem --scale tiny
        caprompt reproduce table1 --scale small --backbone deit_tiny.safetensors --jobs 4
        caprompt reproduce all

    Parameters
    ----------
    targets
        Names of tables and figures (see --list), or all.
    scale
        full is the paper, small DeiT-Ti with fewer epochs, tiny the embedded backbone on a few digits.
    seeds
        How many seeds; more of them can be added later.
    protocol
        released runs CAPrompt with the leak of the authors' program, to compare with published tables; marked as such.
    backbone
        Another backbone for the scale: a name or a weights file.
    jobs
        How many experiments to run at once, a process each.
    out_folder
        Where tables, figures and the experiments behind them are kept.
    list_
        Say what can be reproduced, and at which scales.
    """
    if list_ or not targets:
        print_targets()
        return
    from caprompt.reproduce.plan import checked, leaking, plan
    from caprompt.reproduce.scales import scale as find_scale
    from caprompt.reproduce.targets.registry import select_targets

    wanted = select_targets(targets)
    given = checked(arguments.collect_settings(None, set_ or []), wanted)
    size = find_scale(scale, backbone=backbone, seeds=seeds, settings=given)
    if protocol == "released":
        wanted = [leaking(target) for target in wanted]
    home = out_folder / CELLS
    found = [plan(target, size, home, protocol) for target in wanted]
    run_all(found, home, jobs, device)
    for evidence, _ in found:
        tell(evidence, out_folder / (scale if protocol == "honest" else f"{scale}-released") / evidence.target.name)


def print_targets() -> None:
    """The targets and the scales."""
    from caprompt.cli.tables import listing
    from caprompt.reproduce.scales import scales
    from caprompt.reproduce.targets.registry import ALL, TARGETS

    rows = [[name, target.title] for name, target in TARGETS.items()]
    out.print(listing("targets", ["name", "what it is"], [*rows, [ALL, "every one of these"]]))
    out.print(listing("scales", ["name", "what it is"], [[name, each.summary] for name, each in scales().items()]))


def run_all(found: list[tuple[Evidence, list[Cell]]], home: Path, jobs: int, device: str) -> None:
    """Run every cell that is not done, those that several targets need once."""
    from caprompt.cli.grid_progress import GridProgressBar
    from caprompt.experiments.grid import is_done, run_grid
    from caprompt.reproduce.plan import explain_no_cells, merged

    cells = merged([cell for _, own in found for cell in own])
    if not cells:
        raise InputError(explain_no_cells(found[0][0]))
    done = sum(is_done(home / cell.name, cell.measures) for cell in cells)
    try:
        with GridProgressBar(err, home, len(cells), done) as watch:
            run_grid(cells, home, jobs=jobs, device=device, watch=watch)
    except KeyboardInterrupt:
        raise StoppedError("Stopped; the same command goes on where it was.") from None


def tell(evidence: Evidence, folder: Path) -> None:
    """Print a target's table and write its files."""
    from caprompt.cli.tables import as_terminal
    from caprompt.reproduce.writers import write

    shown = evidence.target.present(evidence)
    write(evidence, shown, folder)
    table = as_terminal(shown.sheet)
    unfolded = out.measure(table, options=out.options.update_width(10_000)).maximum
    # A file or pipe has no width of its own: nothing is folded there.
    console = out if out.is_terminal else Console(width=unfolded, markup=False, emoji=False, highlight=False)
    console.print(table)
    for note in shown.sheet.notes:
        out.print(f"- {note}.", soft_wrap=True, style="dim")
    print_warnings([note for note in evidence.notes() if note.startswith("failed")])
    out.print(f"saved in {folder}", soft_wrap=True)
