from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from helpers import quick_options, squares

from caprompt import ContinualClassifier
from caprompt.data import read_source
from caprompt.experiments.artifacts import COST, PREDICTIONS, TestPredictions, answered, save_artifacts

COLOURS = ("red", "green", "blue", "yellow")


def learned(backbone: Path, method: str = "caprompt", **changes: object) -> ContinualClassifier:
    model = ContinualClassifier(method, backbone, **{**quick_options(method), **changes})
    model.learn(squares(COLOURS[:2]))
    model.learn(squares(COLOURS[2:]))
    return model


def test_what_is_kept_of_every_image_is_what_the_model_says(backbone: Path, tmp_path: Path) -> None:
    model, test = learned(backbone), read_source(squares(COLOURS, each=3, start=50))
    save_artifacts(tmp_path, model, test, give_task=False)
    found = TestPredictions.load(tmp_path / PREDICTIONS)
    predicted = model.predict(list(test.pictures), top=1)
    assert [found.classes[number] for number in found.true] == list(test.labels)
    assert [found.classes[number] for number in found.answer] == [each.label for each in predicted]
    assert found.score == pytest.approx([each.score for each in predicted], abs=1e-5)
    assert found.cycles == (1, 2, 3)
    np.testing.assert_array_equal(found.answers[1], found.answer)
    np.testing.assert_allclose(found.weights[0], [[1, 0]] * len(test))  # the first pass is under the first task's prompt
    np.testing.assert_allclose(found.weights[1], [each.task_weights for each in predicted], atol=1e-3)
    again = TestPredictions.load(tmp_path / PREDICTIONS)
    assert again.classes == found.classes


def test_cost_is_counted(backbone: Path, tmp_path: Path) -> None:
    model = learned(backbone)
    save_artifacts(tmp_path, model, read_source(squares(COLOURS, each=1, start=50)), give_task=False)
    cost = json.loads((tmp_path / COST).read_text())
    prompt = model.method.prompt.numel()  # type: ignore[union-attr, operator]
    assert cost["trained_parameters"] == prompt + 4 * (32 + 1)
    assert cost["kept_bytes"] == sum(tensor.numel() * tensor.element_size() for tensor in model.method.state().values())
    assert cost["kept_bytes_per_class"] == round(cost["kept_bytes"] / 4)
    assert cost["peak_memory_bytes"] > 10_000_000
    assert cost["test_images"] == 4


def test_more_cycles_than_usual_are_asked_for_as_well(backbone: Path) -> None:
    test = read_source(squares(COLOURS, each=1, start=50))
    assert answered(learned(backbone, cycles=4), test, give_task=False)[0].cycles == (1, 2, 3, 4)
    found, _ = answered(learned(backbone, cycles="auto"), test, give_task=False)
    assert found.cycles == (1, 2, 3)


def test_methods_without_cycles_and_given_tasks_have_one_answer(backbone: Path) -> None:
    test = read_source(squares(COLOURS, each=2, start=50))
    for found in (
        answered(learned(backbone, "sequential-prompt"), test, give_task=False)[0],
        answered(learned(backbone), test, give_task=True)[0],
    ):
        assert found.cycles == (0,)
        np.testing.assert_array_equal(found.answers[0], found.answer)
        assert found.weights.shape == (1, 8, 2)
    np.testing.assert_array_equal(found.weights[0].argmax(axis=1), found.true // 2)  # the true task was given


def test_a_leaking_model_is_tested_as_its_run_is(backbone: Path) -> None:
    """Its answers depend on the batch, so they must be those of the same batches: one task at a time."""
    model = learned(backbone, protocol="released", classifier="aligned")
    test = read_source(squares(COLOURS, each=3, start=50)).select([0, 6, 3, 9, 1, 7, 4, 10, 2, 8, 5, 11])
    found, _ = answered(model, test, give_task=False)
    assert 100 * (found.true == found.answer).mean() == pytest.approx(model.evaluate(test).accuracy)
