"""The comparison of all methods: who is in it, in which units, and what a model is said to keep."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from grids import pretended
from helpers import quick_options, squares

from caprompt import ContinualClassifier
from caprompt.data import read_source
from caprompt.methods import list_methods
from caprompt.metrics import MeanStd
from caprompt.reproduce.measures import costs
from caprompt.reproduce.plan import plan
from caprompt.reproduce.scales import scale
from caprompt.reproduce.targets.comparison import ROWS, SPEED_FILE
from caprompt.reproduce.targets.registry import TARGETS


def test_every_method_is_in_it() -> None:
    assert {row.method for row in ROWS} == set(list_methods())


def test_all_have_the_budget_also_where_the_scale_has_another_preset(tmp_path: Path) -> None:
    _, cells = plan(TARGETS["comparison"], scale("tiny", seeds=1), tmp_path)
    usual = {name: scale("tiny").cell(name, {}, "digits", "", 0, ()).config.options for name in list_methods()}
    for cell in cells:
        for name in ("flip", "crop_scale", "test_crop", "normalise", "batch_size"):
            assert cell.config.options[name] == usual[cell.config.method][name]
    assert len(cells) == len(ROWS)
    epochs = {cell.config.options["epochs"] for cell in cells if cell.config.method == "ranpac"}
    assert epochs == {2, 20}
    joint = {cell.config.method: cell.config.options["epochs"] for cell in cells if cell.config.joint}
    assert joint == {"sequential-prompt": 2, "caprompt": 2, "finetune": 8}
    assert TARGETS["comparison"].preset == "budget"


def test_a_line_for_each_in_the_units_of_its_columns(tmp_path: Path) -> None:
    evidence = pretended("comparison", tmp_path)
    shown = evidence.target.present(evidence)
    digits = [line for line in shown.sheet.lines if line.labels[0] == "digits"]
    assert [line.labels[1] for line in digits] == [row.label for row in ROWS]
    metrics, costly = (
        ["ACC", "pooled", "AF", "when learned", "incremental", "task found"],
        ["trained, thousands", "kB a class", "passes"],
    )
    assert shown.sheet.headings[4:] == [*metrics, *costly]
    trained, kept, passes = digits[0].entries[6:]
    assert (trained, passes) == (MeanStd(2.5, 0.0, 2), MeanStd(2.0, 0.0, 2))
    assert isinstance(kept, MeanStd)
    assert kept.mean == pytest.approx(2.0005)
    others = [line for line in shown.sheet.lines if line.labels[0] != "digits"]
    assert {line.labels[1] for line in others} == {"every row"}
    assert shown.pictures


@pytest.mark.parametrize("same", [True, False])
def test_speeds_that_were_measured_with_the_same_backbone_stand_beside(tmp_path: Path, same: bool) -> None:
    evidence = pretended("comparison", tmp_path)
    found = {ROWS[2].label: {"training_images_per_second": 70.0, "rest_seconds": None, "prediction_images_per_second": 90.5}}
    backbone = evidence.scale.backbone if same else "other"
    (evidence.home / SPEED_FILE).write_text(json.dumps({"backbone": backbone, "rows": found}))
    sheet = evidence.target.present(evidence).sheet
    assert (sheet.headings[-3:] == ["trained images/s", "rest, s", "answers/s"]) == same
    assert (list(sheet.lines[2].entries[-3:]) == [MeanStd(70.0), "", MeanStd(90.5)]) == same
    assert (list(sheet.lines[1].entries[-3:]) == ["", "", ""]) == same
    assert any("benchmarks/methods.py" in note for note in sheet.notes) == same


def test_what_a_model_keeps(backbone: Path) -> None:
    """Nearest class mean: a mean of 32 and a count for each class, nothing trained, one pass."""
    images = squares(["red", "green", "blue"])
    model = ContinualClassifier("ncm", backbone, **quick_options("ncm"))
    model.learn(images)
    assert costs(model, read_source(images)) == {"numbers": 0, "bytes_per_class": 4 * 33, "mean_passes": 1.0}
    model = ContinualClassifier("caprompt", backbone, **quick_options("caprompt"))
    model.learn(images)
    found = costs(model, read_source(images))
    assert found["numbers"] == 2 * 2 * 2 * 32 + 3 * 33  # 2 layers of 2 keys and 2 values; the head
    assert found["mean_passes"] == 2.0
    half = 4 * 50 * 101 / 3  # of the regression's sums over images, which are symmetric and shared by the classes
    assert half < found["bytes_per_class"] < half + 4 * (33 + 2 * 100) + 100
