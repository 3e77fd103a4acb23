"""The command `report`: write an HTML page about finished runs."""

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
    """Write one self-contained HTML page about a run, or several to compare: metrics, mistakes, cost, settings.

    Examples:

        caprompt report runs/beetles-caprompt-vit_mini_patch8_64.tin200_distilled-seed0
        caprompt report runs/beetles-* --out compared.html
        caprompt report runs/pets --no-pictures

    Parameters
    ----------
    runs
        Folders of finished runs of one protocol; a folder of such folders (several seeds) counts as all of them.
    out_file
        HTML file to write; an existing file is overwritten.
    no_pictures
        Leave out the images of mistakes, for private data.
    """
    from caprompt.report import write_report

    write_report(runs, out_file, images=not no_pictures)
    out.print(f"written to {out_file}", soft_wrap=True)
