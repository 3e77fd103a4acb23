"""The page: one HTML file with style, script, charts and images embedded, written atomically."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import date
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from caprompt import __version__
from caprompt.errors import InputError
from caprompt.report.charts import color_cell
from caprompt.report.model_data import ModelRecord
from caprompt.report.model_view import make_model_view
from caprompt.report.panels import list_shown_images
from caprompt.report.run_data import RunRecord, load_runs
from caprompt.report.thumbnails import Thumbnails, encode_thumbnails, make_thumbnails
from caprompt.report.view import make_report_view
from caprompt.utils import files
from caprompt.utils.text import escape_bytes

__all__ = ["MAX_BYTES", "check_path", "render", "render_model", "render_template", "write_model_report", "write_report"]

MAX_BYTES = 3_000_000  # a larger page is rendered without images
OMITTED_ON_REQUEST = "Images were left out on request."
OMITTED_FOR_SIZE = "Images were left out: with them the page would be larger than 3 MB."


def write_report(folders: Sequence[Path], path: Path, *, images: bool = True) -> None:
    """Write the report of the runs in these folders to an HTML file.

    Everything is read and checked before anything is written.
    """
    check_path(path)
    runs = load_runs(folders)
    page = render(runs, images=images).encode()
    files.write_bytes(path, page)


def write_model_report(record: ModelRecord, path: Path, *, images: bool = True) -> None:
    """Write the report of a taught model to an HTML file."""
    check_path(path)
    files.write_bytes(path, render_model(record, images=images).encode())


def check_path(path: Path) -> None:
    """Raise if a page cannot be written there."""
    if path.is_dir():
        raise InputError(f"'{path}' is a folder; give the path of the HTML file to write")


def render(runs: Sequence[RunRecord], *, images: bool = True) -> str:
    """Render the report of these runs as HTML."""
    shown = {run.name: list_shown_images(run) for run in runs}

    def render_without(note: str) -> str:
        thumbnails = {name: Thumbnails(note=note) for name, indices in shown.items() if indices}
        return render_template("report.html", make_report_view(runs, thumbnails))

    def render_with() -> str:
        thumbnails = {run.name: make_thumbnails(run, shown[run.name]) for run in runs}
        return render_template("report.html", make_report_view(runs, thumbnails))

    return _render_in_size(render_with, render_without, images)


def render_model(record: ModelRecord, *, images: bool = True) -> str:
    """Render the report of a taught model as HTML."""
    shown = list_shown_images(record)

    def render_without(note: str) -> str:
        return render_template("model.html", make_model_view(record, Thumbnails(note=note if shown else "")))

    def render_with() -> str:
        return render_template("model.html", make_model_view(record, encode_thumbnails(record.samples, shown)))

    return _render_in_size(render_with, render_without, images)


def _render_in_size(render_with: Callable[[], str], render_without: Callable[[str], str], images: bool) -> str:
    """Render a page with images, or without them on request or where it would be too large."""
    if not images:
        return render_without(OMITTED_ON_REQUEST)
    page = render_with()
    return page if len(page.encode()) <= MAX_BYTES else render_without(OMITTED_FOR_SIZE)


def render_template(name: str, view: Mapping[str, Any]) -> str:
    """Render a page from its template and the template's variables."""
    environment = Environment(
        loader=PackageLoader("caprompt.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    template = environment.get_template(name)
    page = template.render(**view, color_cell=color_cell, version=__version__, today=date.today().isoformat())
    return escape_bytes(page)  # names of files need not be valid UTF-8
