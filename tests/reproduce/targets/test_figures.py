from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from grids import make_fake_evidence

from caprompt.metrics import MeanStd, mean_std
from caprompt.reproduce.plots import save_plot
from caprompt.reproduce.targets.figures import compute_straightness, project_tsne

COLUMNS = {"fig-curve": 3, "fig-cycles": 6, "fig-tsne": 1, "fig-params": 3, "fig-hyper": 2}
ROWS = {"fig-curve": 9, "fig-cycles": 2, "fig-tsne": 2, "fig-params": 9, "fig-hyper": 8}


@pytest.mark.parametrize("name", COLUMNS)
def test_rows_columns_and_a_plot(name: str, tmp_path: Path) -> None:
    evidence = make_fake_evidence(name, tmp_path)
    shown = evidence.target.present(evidence)
    assert len(shown.table.lines) == ROWS[name]
    own = [column for column in shown.table.columns if column.dataset == "digits"]
    assert len(own) == COLUMNS[name]
    for line in shown.table.lines:
        assert len(line.entries) == len(shown.table.columns)
        assert all(isinstance(entry, MeanStd) for entry in line.entries[: len(own)])
        assert set(line.entries[len(own) :]) == {"other scale"}
    assert any("without values" in note for note in shown.table.notes)
    svg, _ = save_plot(shown.plots[""], tmp_path / name)
    assert len(svg.read_text()) > 5000


def test_curve_is_the_mean_after_each_task(tmp_path: Path) -> None:
    evidence = make_fake_evidence("fig-curve", tmp_path)
    runs = evidence.load_runs(evidence.target.rows[0], "digits")
    assert not isinstance(runs, str)
    second = mean_std([sum(run.matrix[1]) / 2 for run in runs])
    assert evidence.target.present(evidence).table.lines[0].entries[1] == second


@pytest.mark.parametrize("name", ["fig-curve", "fig-cycles", "fig-params", "fig-hyper"])
def test_protocol_released_is_marked_in_plots(name: str, tmp_path: Path) -> None:
    for protocol, marked in (("honest", False), ("released", True)):
        evidence = make_fake_evidence(name, tmp_path, protocol)
        svg = save_plot(evidence.target.present(evidence).plots[""], tmp_path / name)[0].read_text()
        assert ("RELEASED: not honest" in svg) is marked


def test_parameters_are_relative_to_caprompt(tmp_path: Path) -> None:
    evidence = make_fake_evidence("fig-params", tmp_path)
    lines = evidence.target.present(evidence).table.lines
    assert [line.entries[1].mean for line in lines if isinstance(line.entries[1], MeanStd)] == [2.5] * 7 + [1.0] * 2


def test_projection_and_straightness() -> None:
    rows = np.random.default_rng(0).normal(size=(4, 5, 16))
    points_by_task = project_tsne(rows.tolist())
    assert list(points_by_task) == ["task 1", "task 2", "task 3", "task 4"]
    assert {len(points) for points in points_by_task.values()} == {5}
    assert np.isfinite(list(points_by_task.values())).all()
    line = np.arange(4)[:, None, None] * rows[:1]
    assert compute_straightness(line.tolist()) == pytest.approx(1.0)
    assert compute_straightness(rows.tolist()) < 0.8
    assert compute_straightness(rows[:2].tolist()) == 0.0


def test_no_plot_without_results(tmp_path: Path) -> None:
    from caprompt.reproduce.plan import plan_target
    from caprompt.reproduce.scales import get_scale
    from caprompt.reproduce.targets.registry import TARGETS

    for name in COLUMNS:
        evidence, _ = plan_target(TARGETS[name], get_scale("tiny"), tmp_path)
        shown = evidence.target.present(evidence)
        assert not shown.plots
        assert shown.table.lines[0].entries[0] == "not run"


def test_auto_cycles_are_described_in_a_note(tmp_path: Path) -> None:
    evidence = make_fake_evidence("fig-cycles", tmp_path)
    notes = [note for note in evidence.target.present(evidence).table.notes if "as each image needs" in note]
    sentence = "on digits, as many cycles as each image needs: ACC 55.00 ± 0.00 with 3.00 ± 0.71 passes per image"
    assert notes == [f"{row.label} {sentence}" for row in evidence.target.rows]
