"""The page: one HTML file with style, script, charts and images embedded, written atomically."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date
from pathlib import Path

from jinja2 import Environment, PackageLoader, StrictUndefined

from caprompt import __version__
from caprompt.errors import InputError
from caprompt.report.charts import color_cell
from caprompt.report.panels import list_shown_images
from caprompt.report.run_data import RunRecord, load_runs
from caprompt.report.thumbnails import Thumbnails, make_thumbnails
from caprompt.report.view import make_report_view
from caprompt.utils import files

__all__ = ["MAX_BYTES", "render", "write_report"]

MAX_BYTES = 3_000_000  # a larger page is rendered without images
OMITTED_ON_REQUEST = "Images were left out on request."
OMITTED_FOR_SIZE = "Images were left out: with them the page would be larger than 3 MB."


def write_report(folders: Sequence[Path], path: Path, *, images: bool = True) -> None:
    """Write the report of the runs in these folders to an HTML file.

    Everything is read and checked before anything is written.
    """
    if path.is_dir():
        raise InputError(f"'{path}' is a folder; give the path of the HTML file to write")
    runs = load_runs(folders)
    page = render(runs, images=images).encode()
    files.write_bytes(path, page)


def render(runs: Sequence[RunRecord], *, images: bool = True) -> str:
    """Render the report of these runs as HTML."""
    shown = {run.name: list_shown_images(run) for run in runs}
    if not images:
        return _render_template(runs, {name: Thumbnails(note=OMITTED_ON_REQUEST) for name, indices in shown.items() if indices})
    page = _render_template(runs, {run.name: make_thumbnails(run, shown[run.name]) for run in runs})
    if len(page.encode()) <= MAX_BYTES:
        return page
    return _render_template(runs, {name: Thumbnails(note=OMITTED_FOR_SIZE) for name, indices in shown.items() if indices})


def _render_template(runs: Sequence[RunRecord], thumbnails: dict[str, Thumbnails]) -> str:
    environment = Environment(
        loader=PackageLoader("caprompt.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    template = environment.get_template("report.html")
    view = make_report_view(runs, thumbnails)
    return template.render(**view, color_cell=color_cell, version=__version__, today=date.today().isoformat())
