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


def test_predictions_are_ranked_and_labeled() -> None:
    first, second, *_ = make_predictions(make_output(), ["cat", "dog", "cow"], top=2)
    assert [score.label for score in first.top] == ["cat", "dog"]
    assert first.score == pytest.approx(0.7)
    assert second.label == "cow"
    assert second.task_weights == pytest.approx((0.4, 0.6))
    assert json.loads(json.dumps(second.as_dict()))["top"][1]["label"] == "dog"


def test_evaluation_computed_by_hand() -> None:
    """Cat and dog are in task 1, cow in task 2; predicted are cat, cow, dog, cat, true are cat, dog, dog, cow."""
    evaluation = make_evaluation(make_output(), torch.tensor([0, 1, 1, 2]), ["cat", "dog", "cow"], [["cat", "dog"], ["cow"]])
    assert evaluation.accuracy == 50
    assert [(score.images, score.accuracy) for score in evaluation.tasks] == [(3, pytest.approx(200 / 3)), (1, 0)]
    assert evaluation.average_accuracy == pytest.approx(100 / 3)
    assert evaluation.task_identification == 50
    assert evaluation.mean_passes == 2
    assert evaluation.per_class == {"cat": 100, "dog": 50, "cow": 0}


def test_evaluation_of_groups_with_non_adjacent_classes() -> None:
    """Cat and cow in one group, dog in the other: only the third image has a dog probability above one half (0.6)."""
    logits = torch.log(torch.tensor([[0.7, 0.2, 0.1], [0.1, 0.3, 0.6], [0.3, 0.6, 0.1], [0.6, 0.2, 0.2]]))
    output = MethodOutput(logits, torch.ones(4, 1), torch.ones(4))
    evaluation = make_evaluation(output, torch.tensor([0, 1, 1, 2]), ["cat", "dog", "cow"], [["dog"], ["cow", "cat"]])
    assert [(score.classes, score.images, score.accuracy) for score in evaluation.tasks] == [
        (("dog",), 2, 50),
        (("cow", "cat"), 2, 50),
    ]
    assert evaluation.task_identification == 75
