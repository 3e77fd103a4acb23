from __future__ import annotations

import json

import pytest
import torch

from caprompt.methods import MethodOutput
from caprompt.outputs import make_evaluation, make_predictions


def make_output() -> MethodOutput:
    logits = torch.log(torch.tensor([[0.7, 0.2, 0.1], [0.1, 0.3, 0.6], [0.2, 0.5, 0.3], [0.6, 0.2, 0.2]]))
    weights = torch.tensor([[0.9, 0.1], [0.4, 0.6], [0.7, 0.3], [0.5, 0.5]])
    return MethodOutput(logits, weights, torch.tensor([2, 2, 3, 1]))


def test_predictions_are_ranked_and_named() -> None:
    first, second, *_ = make_predictions(make_output(), ["cat", "dog", "cow"], top=2)
    assert [score.label for score in first.top] == ["cat", "dog"]
    assert first.score == pytest.approx(0.7)
    assert second.label == "cow"
    assert second.task_weights == pytest.approx((0.4, 0.6))
    assert json.loads(json.dumps(second.as_dict()))["top"][1]["label"] == "dog"


def test_evaluation_by_hand() -> None:
    """Classes cat and dog in task 1, cow in task 2; guesses cat, cow, dog, cat against cat, dog, dog, cow."""
    found = make_evaluation(make_output(), torch.tensor([0, 1, 1, 2]), ["cat", "dog", "cow"], [["cat", "dog"], ["cow"]])
    assert found.accuracy == 50
    assert [(score.images, score.accuracy) for score in found.tasks] == [(3, pytest.approx(200 / 3)), (1, 0)]
    assert found.average_accuracy == pytest.approx(100 / 3)
    assert found.task_identification == 50
    assert found.mean_passes == 2
    assert found.per_class == {"cat": 100, "dog": 50, "cow": 0}


def test_evaluation_by_groups_that_do_not_stand_side_by_side() -> None:
    """Cat and cow in one group, dog in the other. The third image is a dog to 0.6, the others are none to 0.7 or more."""
    logits = torch.log(torch.tensor([[0.7, 0.2, 0.1], [0.1, 0.3, 0.6], [0.3, 0.6, 0.1], [0.6, 0.2, 0.2]]))
    output = MethodOutput(logits, torch.ones(4, 1), torch.ones(4))
    found = make_evaluation(output, torch.tensor([0, 1, 1, 2]), ["cat", "dog", "cow"], [["dog"], ["cow", "cat"]])
    assert [(score.classes, score.images, score.accuracy) for score in found.tasks] == [(("dog",), 2, 50), (("cow", "cat"), 2, 50)]
    assert found.task_identification == 75
