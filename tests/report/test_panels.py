from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from helpers import ROOT

from caprompt.report.model_data import ModelRecord
from caprompt.report.panels import MODEL_PANELS, PANELS, list_shown_images, make_panels
from caprompt.report.run_data import RunRecord, load_runs
from caprompt.report.thumbnails import Thumbnails


def make_panel(run: RunRecord, name: str, thumbnails: Thumbnails) -> dict[str, Any]:
    return next(panel for panel in make_panels(run, thumbnails, PANELS) if panel["name"] == name)


def test_every_panel_has_its_template(runs: Path) -> None:
    templates = {path.stem for path in (ROOT / "src/caprompt/report/templates/panels").glob("*.html")}
    assert {panel.name for panel in (*PANELS, *MODEL_PANELS)} == templates


def test_panels_are_in_order_and_only_those_with_something_to_show(runs: Path) -> None:
    (run,) = load_runs([runs / "seed0"])
    names = [panel["name"] for panel in make_panels(run, Thumbnails(), PANELS)]
    assert names[:2] == ["matrix", "weights"]
    assert {"confusion", "reliability", "classes"} <= set(names)
    assert names[-1] == "audit"
    (joint,) = load_runs([runs / "joint"])
    assert "weights" not in [panel["name"] for panel in make_panels(joint, Thumbnails(), PANELS)]


def test_gallery_has_only_mistakes_with_a_thumbnail(runs: Path) -> None:
    (run,) = load_runs([runs / "plain"])
    images = list_shown_images(run)
    assert images, "a model trained for one epoch should make mistakes"
    assert make_panel(run, "mistakes", Thumbnails())["worst_mistakes"] == []
    panel = make_panel(run, "mistakes", Thumbnails({images[0]: "data:,"}))
    assert [mistake.image for mistake in panel["worst_mistakes"]] == [images[0]]


def test_matrix_has_the_number_of_test_images_and_an_interval_of_each_task(runs: Path) -> None:
    (run,) = load_runs([runs / "seed0"])
    tasks = make_panel(run, "matrix", Thumbnails())["tasks"]
    assert [(len(names), images) for names, images, _ in tasks] == [(2, 8), (3, 12), (1, 4)]
    low, high = map(float, tasks[0][2].split(" to "))
    assert low <= run.results.matrix[-1][0] <= high


def test_run_without_predictions_has_no_panel_that_needs_them(runs: Path) -> None:
    (run,) = load_runs([runs / "seed0"])
    names = [panel["name"] for panel in make_panels(replace(run, predictions=None), Thumbnails(), PANELS)]
    assert names == ["matrix", "audit"]


def test_reliability_is_that_of_the_scores(record: ModelRecord) -> None:
    panels = {panel["name"]: panel for panel in make_panels(record, Thumbnails(), MODEL_PANELS)}
    assert panels["reliability"]["calibration_error"] == pytest.approx(record.evaluation.calibration_error, abs=1e-4)
    assert sum(int(row[-1]) for row in panels["reliability"]["bins"].rows) == record.evaluation.images
    assert list(panels) == ["learned", "classes", "mistakes", "confusion", "reliability", "weights"]
