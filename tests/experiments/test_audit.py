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
    made = ContinualClassifier(backbone=backbone, **QUICK)  # type: ignore[arg-type]
    made.learn(squares(COLORS[:2]))
    made.learn(squares(COLORS[2:]))
    return made


def test_an_honest_model_is_clean(model: ContinualClassifier) -> None:
    found = audit(model, squares(COLORS, start=90))
    assert found.clean
    assert found.images == 20
    assert len(found.arrangements) == 6
    assert {arrangement.accuracy for arrangement in found.arrangements} == {model.evaluate(squares(COLORS, start=90)).accuracy}
    assert max(arrangement.largest_difference for arrangement in found.arrangements) < 1e-5
    document = json.loads(json.dumps(found.as_dict()))
    assert document["clean"] is True
    assert Audit.from_dict({**document, "warnings": []}) == found
    headings, rows = found.tabulate()
    assert {len(headings)} == {len(row) for row in rows}


def test_a_model_that_looks_at_the_neighbours_is_caught(model: ContinualClassifier) -> None:
    """Each image's logits are averaged with its batch's: what a leak of task identity looks like."""
    real = model.method.predict

    def leaking(images: torch.Tensor, true_tasks: torch.Tensor | None = None) -> MethodOutput:
        answer = real(images, true_tasks)
        mixed = 0.2 * answer.logits + 5 * answer.logits.mean(dim=0, keepdim=True)
        return MethodOutput(mixed, answer.task_weights, answer.passes)

    model.method.predict = leaking  # type: ignore[method-assign]
    found = audit(model, squares(COLORS, start=90))
    assert not found.clean
    assert any(arrangement.changed for arrangement in found.arrangements[1:])


@pytest.mark.slow
def test_the_leak_of_the_released_programs_is_found(backbone: Path) -> None:
    """Trained and tested as they do, images of one task help each other; shuffled among other tasks' they do not."""
    made = ContinualClassifier(backbone=backbone, **LEAKY)  # type: ignore[arg-type]
    for task in range(5):
        made.learn(make_faint_images([2 * task, 2 * task + 1], each=48, seed=task))
    test = make_faint_images(range(10), each=32, seed=90)
    found = audit(made, test)
    by_name = {arrangement.name.partition(",")[0]: arrangement for arrangement in found.arrangements}
    assert not found.clean
    assert by_name["sorted by task"].changed > 30
    assert by_name["sorted by task"].accuracy > by_name["shuffled"].accuracy + 5
    assert found.protocol.startswith("released")
    evaluated = made.evaluate(test)
    assert evaluated.protocol == found.protocol
    assert evaluated.accuracy == by_name["sorted by task"].accuracy, "64 images a task are one batch in either"


def test_every_arrangement_shows_every_image_once() -> None:
    targets, task_of_class = [3, 0, 2, 1, 0, 3, 2], [1, 0, 0, 1]
    shown = {name: list(order) for name, order, _ in list_arrangements(targets, task_of_class, seed=1)}
    assert all(sorted(order) == list(range(7)) for order in shown.values())
    by_task = next(order for name, order in shown.items() if "task" in name)
    assert [task_of_class[targets[i]] for i in by_task] == [0, 0, 0, 1, 1, 1, 1]
    by_class = next(order for name, order in shown.items() if "class" in name)
    assert [targets[i] for i in by_class] == sorted(targets)


def test_it_needs_classes_that_were_learned(model: ContinualClassifier, backbone: Path) -> None:
    with pytest.raises(InputError, match="class 'cyan' has not been learned"):
        audit(model, squares(["cyan"]))
    with pytest.raises(InputError, match="not learned any class"):
        audit(ContinualClassifier(backbone=backbone), squares(["cyan"]))


@pytest.mark.parametrize(("margin", "expected"), [(1e-5, 0), (3e-4, 1), (0.05, 1)])
def test_a_changed_label_counts_unless_the_probabilities_tie_to_four_digits(margin: float, expected: int) -> None:
    alone = torch.tensor([[0.5 + margin / 2, 0.5 - margin / 2]])
    assert count_changed(alone, alone.flip(1)) == expected
