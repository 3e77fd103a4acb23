from __future__ import annotations

from pathlib import Path
from typing import Any

from helpers import ROOT

from caprompt.report.panels import PANELS, list_shown_images, make_panels
from caprompt.report.run_data import RunRecord, load_runs
from caprompt.report.thumbnails import Thumbnails


def make_panel(run: RunRecord, name: str, thumbnails: Thumbnails) -> dict[str, Any]:
    return next(panel for panel in make_panels(run, thumbnails) if panel["name"] == name)


def test_every_panel_has_its_template(runs: Path) -> None:
    templates = {path.stem for path in (ROOT / "src/caprompt/report/templates/panels").glob("*.html")}
    assert {panel.name for panel in PANELS} == templates


def test_panels_are_in_order_and_only_those_with_something_to_show(runs: Path) -> None:
    (run,) = load_runs([runs / "seed0"])
    names = [panel["name"] for panel in make_panels(run, Thumbnails())]
    assert names[:2] == ["matrix", "weights"]
    assert names[-1] == "audit"
    (joint,) = load_runs([runs / "joint"])
    assert "weights" not in [panel["name"] for panel in make_panels(joint, Thumbnails())]


def test_gallery_has_only_mistakes_with_a_thumbnail(runs: Path) -> None:
    (run,) = load_runs([runs / "plain"])
    images = list_shown_images(run)
    assert images, "a model trained for one epoch should make mistakes"
    assert make_panel(run, "mistakes", Thumbnails())["worst_mistakes"] == []
    panel = make_panel(run, "mistakes", Thumbnails({images[0]: "data:,"}))
    assert [mistake.image for mistake in panel["worst_mistakes"]] == [images[0]]
