"""The page: one HTML file with its style, script, figures and pictures inside, written whole or not at all."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date
from pathlib import Path

from jinja2 import Environment, PackageLoader, StrictUndefined

from caprompt import __version__
from caprompt.errors import InputError
from caprompt.report.charts import heat
from caprompt.report.run_data import RunRecord, gather
from caprompt.report.thumbnails import Thumbnails, thumbnails
from caprompt.report.view import report_view, shown_images
from caprompt.utils import files

__all__ = ["LARGEST", "render", "write_report"]

LARGEST = 3_000_000  # bytes; a page beyond that goes without pictures
WITHHELD = "Pictures were left out on request."
TOO_LARGE = "Pictures were left out: with them the page would be larger than 3 MB."


def write_report(folders: Sequence[Path], path: Path, *, pictures: bool = True) -> None:
    """Make the report of these runs; everything is read and checked before anything is written."""
    if path.is_dir():
        raise InputError(f"'{path}' is a folder; name the HTML file to write with --out")
    runs = gather(folders)
    page = render(runs, pictures=pictures).encode()
    files.write_bytes(path, page)


def render(runs: Sequence[RunRecord], *, pictures: bool = True) -> str:
    """The page of these runs."""
    wanted = {run.name: shown_images(run) for run in runs}
    if not pictures:
        return _filled(runs, {name: Thumbnails(note=WITHHELD) for name, images in wanted.items() if images})
    page = _filled(runs, {run.name: thumbnails(run, wanted[run.name]) for run in runs})
    if len(page.encode()) <= LARGEST:
        return page
    return _filled(runs, {name: Thumbnails(note=TOO_LARGE) for name, images in wanted.items() if images})


def _filled(runs: Sequence[RunRecord], pictures: dict[str, Thumbnails]) -> str:
    environment = Environment(
        loader=PackageLoader("caprompt.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    template = environment.get_template("report.html")
    return template.render(**report_view(runs, pictures), heat=heat, version=__version__, today=date.today().isoformat())
