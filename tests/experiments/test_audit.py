from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from helpers import LEAKY, QUICK, make_faint_images, squares

from caprompt import ContinualClassifier, InputError
from caprompt.experiments.audit import Audit, audit, count_changed, list_arrangements
from caprompt.methods import MethodOutput

COLORS = ["red", "green", "blue", "yellow"]


@pytest.fixture
def model(backbone: Path) -> ContinualClassifier:
    model = ContinualClassifier(backbone=backbone, **QUICK)  # type: ignore[arg-type]
    model.learn(squares(COLORS[:2]))
    model.learn(squares(COLORS[2:]))
    return model


def test_honest_model_is_clean(model: ContinualClassifier) -> None:
    result = audit(model, squares(COLORS, start=90))
    assert result.clean
    assert result.images == 20
    assert len(result.arrangements) == 6
    assert {arrangement.accuracy for arrangement in result.arrangements} == {model.evaluate(squares(COLORS, start=90)).accuracy}
    assert max(arrangement.largest_difference for arrangement in result.arrangements) < 1e-5
    document = json.loads(json.dumps(result.as_dict()))
    assert document["clean"] is True
    assert Audit.from_dict({**document, "warnings": []}) == result
    headings, rows = result.tabulate()
    assert {len(headings)} == {len(row) for row in rows}


def test_batch_dependent_model_is_not_clean(model: ContinualClassifier) -> None:
    """The logits of each image are mixed with the mean of its batch, which leaks the task."""
    predict = model.method.predict

    def leak(images: torch.Tensor, true_tasks: torch.Tensor | None = None) -> MethodOutput:
        output = predict(images, true_tasks)
        mixed = 0.2 * output.logits + 5 * output.logits.mean(dim=0, keepdim=True)
        return MethodOutput(mixed, output.task_weights, output.passes)

    model.method.predict = leak  # type: ignore[method-assign]
    result = audit(model, squares(COLORS, start=90))
    assert not result.clean
    assert any(arrangement.changed for arrangement in result.arrangements[1:])


@pytest.mark.slow
def test_leak_of_the_released_code_is_detected(backbone: Path) -> None:
    """In batches of one task, images raise each other's accuracy; shuffled among images of other tasks they do not."""
    model = ContinualClassifier(backbone=backbone, **LEAKY)  # type: ignore[arg-type]
    for task in range(5):
        model.learn(make_faint_images([2 * task, 2 * task + 1], each=48, seed=task))
    test = make_faint_images(range(10), each=32, seed=90)
    result = audit(model, test)
    by_name = {arrangement.name.partition(",")[0]: arrangement for arrangement in result.arrangements}
    assert not result.clean
    assert by_name["sorted by task"].changed > 30
    assert by_name["sorted by task"].accuracy > by_name["shuffled"].accuracy + 5
    assert result.protocol.startswith("released")
    evaluation = model.evaluate(test)
    assert evaluation.protocol == result.protocol
    assert evaluation.accuracy == by_name["sorted by task"].accuracy, "the 64 images of a task are one batch in both"


def test_every_arrangement_contains_every_image_once() -> None:
    targets, task_of_class = [3, 0, 2, 1, 0, 3, 2], [1, 0, 0, 1]
    orders = {name: list(order) for name, order, _ in list_arrangements(targets, task_of_class, seed=1)}
    assert all(sorted(order) == list(range(7)) for order in orders.values())
    by_task = next(order for name, order in orders.items() if "task" in name)
    assert [task_of_class[targets[i]] for i in by_task] == [0, 0, 0, 1, 1, 1, 1]
    by_class = next(order for name, order in orders.items() if "class" in name)
    assert [targets[i] for i in by_class] == sorted(targets)


def test_unknown_classes_are_refused(model: ContinualClassifier, backbone: Path) -> None:
    with pytest.raises(InputError, match="class 'cyan' has not been learned"):
        audit(model, squares(["cyan"]))
    with pytest.raises(InputError, match="not learned any class"):
        audit(ContinualClassifier(backbone=backbone), squares(["cyan"]))


@pytest.mark.parametrize(("margin", "expected"), [(1e-5, 0), (3e-4, 1), (0.05, 1)])
def test_changed_label_counts_unless_probabilities_tie_to_four_digits(margin: float, expected: int) -> None:
    alone = torch.tensor([[0.5 + margin / 2, 0.5 - margin / 2]])
    assert count_changed(alone, alone.flip(1)) == expected
