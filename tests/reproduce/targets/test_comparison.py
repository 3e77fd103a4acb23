"""The comparison of all methods: its rows, its units, and the storage of a model."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from grids import make_fake_evidence
from helpers import quick_options, squares

from caprompt import ContinualClassifier
from caprompt.data import read_source
from caprompt.methods import list_methods
from caprompt.metrics import MeanStd
from caprompt.reproduce.measures import costs
from caprompt.reproduce.plan import plan_target
from caprompt.reproduce.scales import get_scale
from caprompt.reproduce.targets.comparison import ROWS, SPEED_FILE
from caprompt.reproduce.targets.registry import TARGETS


def test_every_method_has_a_row() -> None:
    assert {row.method for row in ROWS} == set(list_methods())


def test_preset_is_budget_at_every_scale(tmp_path: Path) -> None:
    _, cells = plan_target(TARGETS["comparison"], get_scale("tiny", seeds=1), tmp_path)
    usual = {name: get_scale("tiny").build_cell(name, {}, "digits", "", 0, ()).config.options for name in list_methods()}
    for cell in cells:
        for name in ("flip", "crop_scale", "test_crop", "normalise", "batch_size"):
            assert cell.config.options[name] == usual[cell.config.method][name]
    assert len(cells) == len(ROWS)
    epochs = {cell.config.options["epochs"] for cell in cells if cell.config.method == "ranpac"}
    assert epochs == {2, 20}
    joint = {cell.config.method: cell.config.options["epochs"] for cell in cells if cell.config.joint}
    assert joint == {"sequential-prompt": 2, "caprompt": 2, "finetune": 8}
    assert TARGETS["comparison"].preset == "budget"


def test_values_are_in_the_units_of_their_columns(tmp_path: Path) -> None:
    evidence = make_fake_evidence("comparison", tmp_path)
    shown = evidence.target.present(evidence)
    digits = [line for line in shown.table.lines if line.labels[0] == "digits"]
    assert [line.labels[1] for line in digits] == [row.label for row in ROWS]
    metrics, cost_headings = (
        ["ACC", "pooled", "AF", "when learned", "incremental", "task identified"],
        ["trained, thousands", "kB per class", "passes"],
    )
    assert shown.table.headings[4:] == [*metrics, *cost_headings]
    trained, stored, passes = digits[0].entries[6:]
    assert (trained, passes) == (MeanStd(2.5, 0.0, 2), MeanStd(2.0, 0.0, 2))
    assert isinstance(stored, MeanStd)
    assert stored.mean == pytest.approx(2.0005)
    others = [line for line in shown.table.lines if line.labels[0] != "digits"]
    assert {line.labels[1] for line in others} == {"every row"}
    assert shown.plots


@pytest.mark.parametrize("same", [True, False])
def test_speeds_are_shown_if_measured_with_the_same_backbone(tmp_path: Path, same: bool) -> None:
    evidence = make_fake_evidence("comparison", tmp_path)
    speeds = {ROWS[2].label: {"training_images_per_second": 70.0, "rest_seconds": None, "prediction_images_per_second": 90.5}}
    backbone = evidence.scale.backbone if same else "other"
    (evidence.cells_dir / SPEED_FILE).write_text(json.dumps({"backbone": backbone, "rows": speeds}))
    table = evidence.target.present(evidence).table
    assert (table.headings[-3:] == ["trained images/s", "rest, s", "predictions/s"]) == same
    assert (list(table.lines[2].entries[-3:]) == [MeanStd(70.0), "", MeanStd(90.5)]) == same
    assert (list(table.lines[1].entries[-3:]) == ["", "", ""]) == same
    assert any("benchmarks/methods.py" in note for note in table.notes) == same


def test_costs_of_a_model(backbone: Path) -> None:
    """Nearest class mean: a mean of 32 and a count for each class, nothing trained, one pass."""
    images = squares(["red", "green", "blue"])
    model = ContinualClassifier("ncm", backbone, **quick_options("ncm"))
    model.learn(images)
    assert costs(model, read_source(images)) == {"numbers": 0, "bytes_per_class": 8 * 33, "mean_passes": 1.0}  # exact sums
    model = ContinualClassifier("caprompt", backbone, **quick_options("caprompt"))
    model.learn(images)
    result = costs(model, read_source(images))
    # 2 layers of 2 keys and 2 values and of 4 scales and 4 shifts; the head's rows and its scale
    assert result["numbers"] == 2 * 2 * (2 + 4) * 32 + 3 * 32 + 1
    assert result["mean_passes"] == 2.0
    half = 4 * 50 * 101 / 3  # sums over images of the regression, symmetric and shared by all classes
    assert half < result["bytes_per_class"] < half + 4 * (33 + 2 * 100) + 100
