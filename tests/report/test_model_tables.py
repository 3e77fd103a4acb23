from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from helpers import squares

from caprompt import ContinualClassifier
from caprompt.report import evaluate_model, model_tables
from caprompt.report.model_data import ModelRecord


def test_about_the_model(record: ModelRecord) -> None:
    rows = dict(model_tables.make_about_table(record).rows)
    assert rows["method"] == "ncm"
    assert (rows["classes"], rows["training images"], rows["calls of learn"]) == ("5", "25", "2")
    assert rows["backbone sha256"] == record.model.backbone.sha256[:16]
    assert rows["size without the backbone"].endswith(" kB")


def test_tasks_have_images_and_accuracy(record: ModelRecord) -> None:
    first, second = model_tables.make_learned_table(record).rows
    score = record.evaluation.tasks[0]
    assert first[:3] == ["1", "3", f"{score.accuracy:.1f}"]
    assert first[4:] == ["14", "15"]
    assert second[4:] == ["1", "10"]


def test_task_without_test_images(record: ModelRecord) -> None:
    evaluation = replace(record.evaluation, tasks=record.evaluation.tasks[:1])
    assert model_tables.make_learned_table(replace(record, evaluation=evaluation)).rows[1] == ["2", "2", "", "", "0", "10"]


def test_worst_classes_come_first_and_those_without_images_last(record: ModelRecord) -> None:
    rows = {row[0]: row for row in model_tables.make_worst_classes_table(record).rows}
    accuracies = [float(row[1]) for row in rows.values() if row[1]]
    assert accuracies == sorted(accuracies)
    assert rows["green"][3] == "6"
    assert rows["green"][4].startswith("red (")
    assert list(rows)[-1] == "white"
    assert rows["white"][1:5] == ["", "", "0", ""]
    assert rows["yellow"][3] == "1"


def test_lessons_and_edits(backbone: Path) -> None:
    model = ContinualClassifier("ncm", backbone)
    model.learn(squares(["red", "green"]))
    model.learn(squares(["red", "blue"], start=20))
    record = evaluate_model(model, squares(["red"], start=70), "pets")
    table = model_tables.make_lessons_table(record)
    assert table is not None
    assert [row[1] for row in table.rows] == ["10 images; new: green, red", "10 images; new: blue; more of: red"]
    assert all(len(row[0]) == 10 for row in table.rows)  # dates
    model.lessons.clear()  # as in a model of an earlier version
    assert model_tables.make_lessons_table(record) is None
