from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from grids import pretended

from caprompt.metrics import MeanStd, mean_std
from caprompt.reproduce.plots import save
from caprompt.reproduce.targets.figures import laid_out, straightness

COLUMNS = {"fig-curve": 3, "fig-cycles": 6, "fig-tsne": 1, "fig-params": 3, "fig-hyper": 2}
ROWS = {"fig-curve": 9, "fig-cycles": 2, "fig-tsne": 2, "fig-params": 9, "fig-hyper": 8}


@pytest.mark.parametrize("name", COLUMNS)
def test_rows_columns_and_a_picture(name: str, tmp_path: Path) -> None:
    evidence = pretended(name, tmp_path)
    shown = evidence.target.present(evidence)
    assert len(shown.sheet.lines) == ROWS[name]
    own = [column for column in shown.sheet.columns if column.dataset == "digits"]
    assert len(own) == COLUMNS[name]
    for line in shown.sheet.lines:
        assert len(line.entries) == len(shown.sheet.columns)
        assert all(isinstance(entry, MeanStd) for entry in line.entries[: len(own)])
        assert set(line.entries[len(own) :]) == {"other scale"}
    assert any("without numbers" in note for note in shown.sheet.notes)
    svg, _ = save(shown.pictures[""], tmp_path / name)
    assert len(svg.read_text()) > 5000


def test_the_curve_is_the_mean_after_each_task(tmp_path: Path) -> None:
    evidence = pretended("fig-curve", tmp_path)
    runs = evidence.runs(evidence.target.rows[0], "digits")
    assert not isinstance(runs, str)
    second = mean_std([sum(run.matrix[1]) / 2 for run in runs])
    assert evidence.target.present(evidence).sheet.lines[0].entries[1] == second


@pytest.mark.parametrize("name", ["fig-curve", "fig-cycles", "fig-params", "fig-hyper"])
def test_leaking_figures_are_marked_in_pictures(name: str, tmp_path: Path) -> None:
    for protocol, marked in (("honest", False), ("released", True)):
        evidence = pretended(name, tmp_path, protocol)
        svg = save(evidence.target.present(evidence).pictures[""], tmp_path / name)[0].read_text()
        assert ("RELEASED: not honest" in svg) is marked


def test_parameters_are_told_in_those_of_caprompt(tmp_path: Path) -> None:
    evidence = pretended("fig-params", tmp_path)
    lines = evidence.target.present(evidence).sheet.lines
    assert [line.entries[1].mean for line in lines if isinstance(line.entries[1], MeanStd)] == [2.5] * 7 + [1.0] * 2


def test_rows_in_the_plane_and_on_a_line() -> None:
    rows = np.random.default_rng(0).normal(size=(4, 5, 16))
    places = laid_out(rows.tolist())
    assert list(places) == ["task 1", "task 2", "task 3", "task 4"]
    assert {len(points) for points in places.values()} == {5}
    assert np.isfinite(list(places.values())).all()
    line = np.arange(4)[:, None, None] * rows[:1]
    assert straightness(line.tolist()) == pytest.approx(1.0)
    assert straightness(rows.tolist()) < 0.8
    assert straightness(rows[:2].tolist()) == 0.0


def test_nothing_run_is_no_picture(tmp_path: Path) -> None:
    from caprompt.reproduce.plan import plan
    from caprompt.reproduce.scales import scale
    from caprompt.reproduce.targets.registry import TARGETS

    for name in COLUMNS:
        evidence, _ = plan(TARGETS[name], scale("tiny"), tmp_path)
        shown = evidence.target.present(evidence)
        assert not shown.pictures
        assert shown.sheet.lines[0].entries[0] == "not run"


def test_cycles_as_needed_are_told_in_a_note(tmp_path: Path) -> None:
    evidence = pretended("fig-cycles", tmp_path)
    notes = [note for note in evidence.target.present(evidence).sheet.notes if "as each image needs" in note]
    sentence = "on digits, as many cycles as each image needs: ACC 55.00 ± 0.00 with 3.00 ± 0.71 passes an image"
    assert notes == [f"{row.label} {sentence}" for row in evidence.target.rows]
