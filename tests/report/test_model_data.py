from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from helpers import squares, write_squares

from caprompt import ContinualClassifier, InputError
from caprompt.report import evaluate_model
from caprompt.report.model_data import ModelRecord


def test_predictions_are_those_of_the_evaluation(record: ModelRecord) -> None:
    predictions, evaluation = record.predictions, record.evaluation
    assert predictions.classes == tuple(record.model.classes)
    assert 100 * np.mean(predictions.true == predictions.answer) == pytest.approx(evaluation.accuracy)
    wrong = {mistake.image: mistake for mistake in evaluation.mistakes}
    assert set(np.flatnonzero(predictions.true != predictions.answer).tolist()) == set(wrong)
    for image, mistake in wrong.items():
        assert predictions.classes[predictions.answer[image]] == mistake.predicted
        assert predictions.score[image] == pytest.approx(mistake.score)
    assert predictions.weights.shape == (1, evaluation.images, 2)


def test_classes_that_were_not_learned_are_left_out(record: ModelRecord) -> None:
    assert record.evaluation.skipped == ("class 'cyan' (4 images) has not been learned; left out",)
    assert len(record.samples) == record.evaluation.images == 15


def test_size_is_that_of_the_state(record: ModelRecord) -> None:
    assert record.num_bytes >= 5 * 32 * 4  # a mean of 32 numbers of each class


def test_invalid_input(record: ModelRecord, backbone: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="class 'cyan' has not been learned"):
        evaluate_model(record.model, squares(["cyan"]), "pets")
    with pytest.raises(InputError, match="there is no folder"):
        evaluate_model(record.model, tmp_path / "nowhere", "pets")
    with pytest.raises(InputError, match="has not learned any class yet"):
        evaluate_model(ContinualClassifier("ncm", backbone), squares(["red"]), "pets")


def test_unreadable_images(record: ModelRecord, tmp_path: Path) -> None:
    folder = write_squares(tmp_path, ["red"], each=2)
    (folder / "red" / "bad.png").write_bytes(b"no image")
    with pytest.raises(InputError, match=r"bad\.png"):
        evaluate_model(record.model, folder, "pets")
    skipped = evaluate_model(record.model, folder, "pets", skip_bad=True)
    assert skipped.evaluation.images == 2
    assert "bad.png" in skipped.evaluation.skipped[0]
