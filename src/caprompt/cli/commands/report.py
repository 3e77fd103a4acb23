"""The command `report`: run folders become one HTML page."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from caprompt.cli.console import out

__all__ = ["report"]


def report(
    *runs: Path,
    out_file: Annotated[Path, Parameter(name="--out")] = Path("report.html"),
    no_pictures: bool = False,
) -> None:
    """Make one HTML page of a run, or of several to compare them: figures, mistakes, cost, settings. It needs no network.

    Examples:

        caprompt report runs/digits-caprompt-vit_mini_patch8_64.tin200_distilled-seed0
        caprompt report runs/digits-* --out compared.html
        caprompt report runs/pets --no-pictures

    Parameters
    ----------
    runs
        Folders of finished runs of one protocol; a folder of such folders (several seeds) stands for all of them.
    out_file
        The page; one that is there is replaced.
    no_pictures
        Leave the pictures of mistakes out, for private ones.
    """
    from caprompt.report import write_report

    write_report(runs, out_file, pictures=not no_pictures)
    out.print(f"written to {out_file}", soft_wrap=True)
