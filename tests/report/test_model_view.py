from __future__ import annotations

from caprompt.metrics import format_interval
from caprompt.report.model_data import ModelRecord
from caprompt.report.model_view import make_model_view
from caprompt.report.thumbnails import Thumbnails


def test_headline_has_interval_and_number_of_images(record: ModelRecord) -> None:
    view = make_model_view(record, Thumbnails())
    tiles = {name: (value, description) for value, name, description in view["tiles"]}
    evaluation = record.evaluation
    assert tiles["accuracy, %"] == (
        f"{evaluation.accuracy:.1f}",
        f"95 % interval {format_interval(evaluation.interval)}, 15 test images",
    )
    assert tiles["classes"] == ("5", "learned from 25 images in 2 calls")
    assert tiles["ACC, %"][0] == f"{evaluation.average_accuracy:.1f}"
    assert view["title"] == "pets: ncm"


def test_one_task_has_no_metrics_of_tasks(long_named: ModelRecord) -> None:
    names = [name for _, name, _ in make_model_view(long_named, Thumbnails())["tiles"]]
    assert "ACC, %" not in names
    assert "task identified, %" not in names


def test_what_was_left_out_is_a_warning(record: ModelRecord) -> None:
    view = make_model_view(record, Thumbnails(note="No images."))
    assert view["warnings"] == ["class 'cyan' (4 images) has not been learned; left out"]
    assert view["record"]["notes"] == ["No images."]
    assert view["honest"]
