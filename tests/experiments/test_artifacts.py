from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from helpers import quick_options, squares

from caprompt import ContinualClassifier
from caprompt.data import Samples, read_source
from caprompt.experiments.artifacts import COST, PREDICTIONS, FinalPredictions, save_artifacts

COLORS = ("red", "green", "blue", "yellow")


def train(backbone: Path, method: str = "caprompt", **options: object) -> ContinualClassifier:
    model = ContinualClassifier(method, backbone, **{**quick_options(method), **options})
    model.learn(squares(COLORS[:2]))
    model.learn(squares(COLORS[2:]))
    return model


def save(model: ContinualClassifier, test: Samples, folder: Path, give_task: bool = False) -> FinalPredictions:
    """Save the artifacts of a test and read the predictions back."""
    save_artifacts(folder, model, model.compute_outputs(test, give_task=give_task), give_task)
    return FinalPredictions.load(folder / PREDICTIONS)


def test_saved_predictions_are_those_of_the_model(backbone: Path, tmp_path: Path) -> None:
    model, test = train(backbone), read_source(squares(COLORS, each=3, start=50))
    saved = save(model, test, tmp_path)
    predicted = model.predict(list(test.images), top=1)
    assert [saved.classes[number] for number in saved.true] == list(test.labels)
    assert [saved.classes[number] for number in saved.answer] == [each.label for each in predicted]
    assert saved.score == pytest.approx([each.score for each in predicted], abs=1e-5)
    assert saved.cycles == (1, 2, 3)
    np.testing.assert_array_equal(saved.answers[1], saved.answer)
    np.testing.assert_allclose(saved.weights[0], [[1, 0]] * len(test))  # the first pass uses the first task's prompt
    np.testing.assert_allclose(saved.weights[1], [each.task_weights for each in predicted], atol=1e-3)


def test_the_cost_is_measured(backbone: Path, tmp_path: Path) -> None:
    model = train(backbone)
    save(model, read_source(squares(COLORS, each=1, start=50)), tmp_path)
    cost = json.loads((tmp_path / COST).read_text())
    prompt = model.method.prompt.numel()  # type: ignore[union-attr, operator]
    assert cost["trained_parameters"] == prompt + 4 * (32 + 1)
    assert cost["kept_bytes"] == sum(tensor.numel() * tensor.element_size() for tensor in model.method.state().values())
    assert cost["kept_bytes_per_class"] == round(cost["kept_bytes"] / 4)
    assert cost["peak_memory_bytes"] > 10_000_000
    assert cost["test_images"] == 4
    assert cost["test_seconds"] > 0


def test_the_methods_own_number_of_cycles_is_among_those_tried(backbone: Path, tmp_path: Path) -> None:
    test = read_source(squares(COLORS, each=1, start=50))
    assert save(train(backbone, cycles=4), test, tmp_path).cycles == (1, 2, 3, 4)
    assert save(train(backbone, cycles="auto"), test, tmp_path).cycles == (1, 2, 3)


def test_methods_without_cycles_and_given_tasks_have_one_prediction(backbone: Path, tmp_path: Path) -> None:
    test = read_source(squares(COLORS, each=2, start=50))
    for saved in (
        save(train(backbone, "sequential-prompt"), test, tmp_path),
        save(train(backbone), test, tmp_path, give_task=True),
    ):
        assert saved.cycles == (0,)
        np.testing.assert_array_equal(saved.answers[0], saved.answer)
        assert saved.weights.shape == (1, 8, 2)
    np.testing.assert_array_equal(saved.weights[0].argmax(axis=1), saved.true // 2)  # the true task was given


def test_a_leaking_model_is_tested_in_the_batches_of_its_run(backbone: Path, tmp_path: Path) -> None:
    """Its predictions depend on the batch, so they must come from the same batches: one task at a time."""
    model = train(backbone, protocol="released", classifier="aligned")
    test = read_source(squares(COLORS, each=3, start=50)).select([0, 6, 3, 9, 1, 7, 4, 10, 2, 8, 5, 11])
    saved = save(model, test, tmp_path)
    assert 100 * (saved.true == saved.answer).mean() == pytest.approx(model.evaluate(test).accuracy)
