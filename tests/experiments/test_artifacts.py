from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from helpers import quick_options, squares

from caprompt import ContinualClassifier
from caprompt.data import Samples, read_source
from caprompt.errors import ModelFolderError
from caprompt.experiments.artifacts import COST, PREDICTIONS, FinalPredictions, save_artifacts

COLORS = ("red", "green", "blue", "yellow")


def train(backbone: Path, method: str = "caprompt", **options: object) -> ContinualClassifier:
    model = ContinualClassifier(method, backbone, **{**quick_options(method), **options})
    model.learn(squares(COLORS[:2]))
    model.learn(squares(COLORS[2:]))
    return model


def save_and_load(model: ContinualClassifier, test: Samples, folder: Path, give_task: bool = False) -> FinalPredictions:
    """Save the artifacts of a test and load the predictions."""
    save_artifacts(folder, model, model.compute_outputs(test, give_task=give_task), give_task)
    return FinalPredictions.load(folder / PREDICTIONS)


def test_saved_predictions_equal_those_of_the_model(backbone: Path, tmp_path: Path) -> None:
    model, test = train(backbone), read_source(squares(COLORS, each=3, start=50))
    saved = save_and_load(model, test, tmp_path)
    predicted = model.predict(list(test.images), top=1)
    assert [saved.classes[index] for index in saved.true] == list(test.labels)
    assert [saved.classes[index] for index in saved.answer] == [prediction.label for prediction in predicted]
    assert saved.score == pytest.approx([prediction.score for prediction in predicted], abs=1e-5)
    assert saved.cycles == (1, 2, 3)
    np.testing.assert_array_equal(saved.answers[1], saved.answer)
    np.testing.assert_allclose(saved.weights[0], [[1, 0]] * len(test))  # the first pass uses the first task's prompt
    np.testing.assert_allclose(saved.weights[1], [prediction.task_weights for prediction in predicted], atol=1e-3)


def test_cost_is_measured(backbone: Path, tmp_path: Path) -> None:
    model = train(backbone)
    save_and_load(model, read_source(squares(COLORS, each=1, start=50)), tmp_path)
    cost = json.loads((tmp_path / COST).read_text())
    prompt = model.method.prompt.numel()  # type: ignore[union-attr, operator]
    assert cost["trained_parameters"] == prompt + 4 * 32 + 1  # rows of the head and its scale
    assert cost["kept_bytes"] == sum(tensor.numel() * tensor.element_size() for tensor in model.method.state().values())
    assert cost["kept_bytes_per_class"] == round(cost["kept_bytes"] / 4)
    assert cost["peak_memory_bytes"] > 10_000_000
    assert cost["test_images"] == 4
    assert cost["test_seconds"] > 0


def test_saved_cycles_include_that_of_the_options(backbone: Path, tmp_path: Path) -> None:
    test = read_source(squares(COLORS, each=1, start=50))
    assert save_and_load(train(backbone, cycles=4), test, tmp_path).cycles == (1, 2, 3, 4)
    assert save_and_load(train(backbone, cycles="auto"), test, tmp_path).cycles == (1, 2, 3)


def test_one_prediction_per_image_without_cycles_or_with_given_tasks(backbone: Path, tmp_path: Path) -> None:
    test = read_source(squares(COLORS, each=2, start=50))
    for saved in (
        save_and_load(train(backbone, "sequential-prompt"), test, tmp_path),
        save_and_load(train(backbone), test, tmp_path, give_task=True),
    ):
        assert saved.cycles == (0,)
        np.testing.assert_array_equal(saved.answers[0], saved.answer)
        assert saved.weights.shape == (1, 8, 2)
    np.testing.assert_array_equal(saved.weights[0].argmax(axis=1), saved.true // 2)  # the true tasks


def test_released_protocol_uses_the_same_batches_as_evaluate(backbone: Path, tmp_path: Path) -> None:
    """Predictions depend on batch composition, so they must come from the same batches: one task at a time."""
    model = train(backbone, protocol="released", classifier="aligned")
    test = read_source(squares(COLORS, each=3, start=50)).select([0, 6, 3, 9, 1, 7, 4, 10, 2, 8, 5, 11])
    saved = save_and_load(model, test, tmp_path)
    assert 100 * (saved.true == saved.answer).mean() == pytest.approx(model.evaluate(test).accuracy)


@pytest.fixture
def saved_file(tmp_path: Path) -> Path:
    """A small predictions.npz of two classes and three images."""
    answers = np.array([[0, 1, 1]], np.int32)
    predictions = FinalPredictions(
        ("cat", "dog"), answers[0], answers[0], np.ones(3, np.float32), (0,), answers, np.ones((1, 3, 1), np.float16)
    )
    predictions.save(tmp_path / PREDICTIONS)
    return tmp_path / PREDICTIONS


def load_or_fail(path: Path) -> tuple[FinalPredictions | None, str]:
    try:
        return FinalPredictions.load(path), ""
    except ModelFolderError as error:
        return None, str(error)


def test_any_damaged_byte_is_one_sentence_or_changes_nothing(saved_file: Path) -> None:
    content, expected = saved_file.read_bytes(), FinalPredictions.load(saved_file)
    num_damaged = 0
    for position in range(len(content)):
        saved_file.write_bytes(content[:position] + bytes([content[position] ^ 0xFF]) + content[position + 1 :])
        loaded, message = load_or_fail(saved_file)
        if loaded is None:
            num_damaged += 1
            assert "\n" not in message
            assert str(saved_file) in message
        else:  # a byte that is not data, such as of a date
            assert loaded.classes == expected.classes
            np.testing.assert_array_equal(loaded.weights, expected.weights)
            np.testing.assert_array_equal(loaded.answers, expected.answers)
    assert num_damaged > len(content) / 2


def test_any_truncation_is_one_sentence(saved_file: Path) -> None:
    content = saved_file.read_bytes()
    for length in range(0, len(content), 7):
        saved_file.write_bytes(content[:length])
        with pytest.raises(ModelFolderError, match=r"predictions\.npz' is damaged|predictions\.npz' cannot be read"):
            FinalPredictions.load(saved_file)
    with pytest.raises(ModelFolderError, match="cannot be read"):
        FinalPredictions.load(saved_file.with_name("none.npz"))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("answer", np.zeros(2, np.int32)),
        ("answer", np.array([0, 1, 2], np.int32)),
        ("true", np.array([0, -1, 1], np.int32)),
        ("answers", np.zeros((1, 3), np.float32)),
        ("weights", np.ones((1, 3), np.float16)),
        ("weights", np.ones((2, 3, 1), np.float16)),
    ],
)
def test_arrays_that_do_not_fit_together_are_refused(saved_file: Path, name: str, value: np.ndarray) -> None:
    replace(FinalPredictions.load(saved_file), **{name: value}).save(saved_file)
    with pytest.raises(ModelFolderError, match="is damaged"):
        FinalPredictions.load(saved_file)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
def test_full_disk_names_the_file(saved_file: Path) -> None:
    predictions = FinalPredictions.load(saved_file)
    saved_file.with_name(f".{PREDICTIONS}.next").symlink_to("/dev/full")
    with pytest.raises(OSError, match="No space left on device") as failure:
        predictions.save(saved_file)
    assert failure.value.filename == str(saved_file)
