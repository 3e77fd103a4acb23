from __future__ import annotations

import json
import time
from pathlib import Path

import pytest
import torch

from caprompt import InputError
from caprompt.methods import MethodOutput
from caprompt.outputs import (
    _start_copy,
    compute_known_scores,
    compute_probabilities,
    make_evaluation,
    make_predictions,
    make_unknown_score,
)

CLASSES, TASKS = ["cat", "dog", "cow"], [["cat", "dog"], ["cow"]]


def output_of(probabilities: list[list[float]]) -> MethodOutput:
    count = len(probabilities)
    return MethodOutput(torch.log(torch.tensor(probabilities)), torch.ones(count, 1), torch.ones(count, dtype=torch.long))


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


def test_mistakes_and_confusions() -> None:
    images = [Path("a.png"), Path("b.png"), Path("c.png"), Path("d.png")]
    evaluation = make_evaluation(make_output(), torch.tensor([0, 1, 1, 2]), CLASSES, TASKS, images=images)
    assert evaluation.confusion == {"cat": {"cat": 1}, "dog": {"cow": 1, "dog": 1}, "cow": {"cat": 1}}
    assert {(each.image, each.path, each.label, each.predicted) for each in evaluation.mistakes} == {
        (1, "b.png", "dog", "cow"),
        (3, "d.png", "cow", "cat"),
    }
    assert [each.score for each in evaluation.mistakes] == pytest.approx([0.6, 0.6])
    assert evaluation.images_per_class == {"cat": 1, "dog": 2, "cow": 1}
    assert evaluation.intervals["dog"] == pytest.approx((9.4531, 90.5469), abs=1e-3)
    assert evaluation.interval == pytest.approx((15.0039, 84.9961), abs=1e-3)
    assert [each.describe() for each in evaluation.list_confusions()] == [
        "1 of 1 'cow' was taken for 'cat'",  # the larger share of its class first
        "1 of 2 'dog' was taken for 'cow'",
    ]
    assert evaluation.list_classes() == ["cow", "dog", "cat"]
    assert sum(each.images for each in evaluation.reliability) == 4


def test_calibration_error_by_hand() -> None:
    """Scores 0.7 (right), 0.6 (wrong), 0.5 (right) and 0.6 (wrong) lie in three bins."""
    evaluation = make_evaluation(make_output(), torch.tensor([0, 1, 1, 2]), CLASSES, TASKS)
    assert evaluation.calibration_error == pytest.approx((30 + 2 * 60 + 50) / 4, abs=1e-3)


def test_class_without_images_and_class_with_one() -> None:
    output = output_of([[0.7, 0.2, 0.1]])
    evaluation = make_evaluation(output, torch.tensor([0]), CLASSES, TASKS)
    assert evaluation.images_per_class == {"cat": 1, "dog": 0, "cow": 0}
    assert evaluation.per_class == {"cat": 100}
    assert set(evaluation.intervals) == {"cat"}
    assert evaluation.mistakes == ()
    assert evaluation.list_confusions() == []
    assert [score.task for score in evaluation.tasks] == [1]


def test_equally_likely_classes_are_resolved_as_in_predictions() -> None:
    output = output_of([[0.4, 0.4, 0.2], [0.2, 0.4, 0.4]])
    evaluation = make_evaluation(output, torch.tensor([0, 2]), CLASSES, TASKS)
    labels = [prediction.label for prediction in make_predictions(output, CLASSES, top=1)]
    assert labels == ["cat", "dog"]
    assert [mistake.predicted for mistake in evaluation.mistakes] == ["dog"]


def test_mistakes_with_the_highest_scores_first_and_equal_ones_in_order() -> None:
    output = output_of([[0.6, 0.4, 0.0], [0.9, 0.1, 0.0], [0.6, 0.4, 0.0], [0.9, 0.1, 0.0]])
    evaluation = make_evaluation(output, torch.tensor([1, 1, 2, 0]), CLASSES, TASKS)
    assert [mistake.image for mistake in evaluation.mistakes] == [1, 0, 2]


def test_worst_classes_first_and_of_equal_ones_those_with_more_images() -> None:
    output = output_of([[0.9, 0.1, 0.0]] * 5)
    evaluation = make_evaluation(output, torch.tensor([0, 1, 2, 2, 2]), CLASSES, TASKS)
    assert evaluation.list_classes() == ["cow", "dog", "cat"]
    assert [(each.label, each.count) for each in evaluation.list_confusions()] == [("cow", 3), ("dog", 1)]


def test_output_that_is_not_a_number_counts_as_a_mistake_and_stays_valid_json() -> None:
    output = output_of([[0.7, 0.2, 0.1], [0.1, 0.8, 0.1]])
    output.logits[1] = torch.nan
    evaluation = make_evaluation(output, torch.tensor([0, 1]), CLASSES, TASKS)
    assert evaluation.accuracy == 50
    json.dumps(evaluation.as_dict(), allow_nan=False)


def test_evaluation_as_json() -> None:
    evaluation = make_evaluation(make_output(), torch.tensor([0, 1, 1, 2]), CLASSES, TASKS)
    document = json.loads(json.dumps(evaluation.as_dict(), allow_nan=False))
    assert document["confusion"]["dog"] == {"cow": 1, "dog": 1}
    assert document["intervals"]["cat"][1] == 100
    assert {mistake["predicted"] for mistake in document["mistakes"]} == {"cat", "cow"}
    assert len(document["reliability"]) == 15
    assert document["calibration_error"] == pytest.approx(evaluation.calibration_error)
    assert document["unknown"] is None


def test_ten_thousand_classes_take_little_time_and_space() -> None:
    count, images = 10_000, 300
    classes = [f"class {number}" for number in range(count)]
    generator = torch.Generator().manual_seed(0)
    output = MethodOutput(torch.randn(images, count, generator=generator), torch.ones(images, 1), torch.ones(images))
    start = time.perf_counter()
    evaluation = make_evaluation(output, torch.randint(count, (images,), generator=generator), classes, [classes])
    assert time.perf_counter() - start < 5
    assert sum(len(row) for row in evaluation.confusion.values()) <= images
    assert len(evaluation.images_per_class) == count
    assert len(json.dumps(evaluation.as_dict())) < 1_000_000


@pytest.mark.parametrize(
    ("tasks", "sentence"),
    [
        ([["cat"], ["dog"]], "class 'cow' is in none of the given tasks; put every learned class into exactly one"),
        ([["cat", "dog"], ["cow", "cat"]], "class 'cat' is in 2 of the given tasks"),
    ],
)
def test_tasks_that_do_not_hold_every_class_once(tasks: list[list[str]], sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        make_evaluation(make_output(), torch.tensor([0, 1, 1, 2]), CLASSES, tasks)


def test_probabilities_and_known_scores() -> None:
    output = make_output()
    assert torch.allclose(compute_probabilities(output).sum(dim=1), torch.ones(4))
    assert compute_known_scores(output).tolist() == pytest.approx([0.7, 0.6, 0.5, 0.6])
    first = next(iter(make_predictions(output, CLASSES, top=3)))
    assert [score.score for score in first.top] == pytest.approx(compute_probabilities(output)[0].tolist())


def test_unknown_images_are_told_apart_by_their_score() -> None:
    known, unknown = output_of([[0.9, 0.05, 0.05], [0.5, 0.3, 0.2]]), output_of([[0.4, 0.3, 0.3], [0.5, 0.3, 0.2]])
    score = make_unknown_score(known, unknown)
    assert (score.images, score.auroc, score.flagged, score.falsely_flagged) == (2, 87.5, None, None)
    flagged = make_unknown_score(known, unknown, threshold=0.45)
    assert (flagged.flagged, flagged.falsely_flagged) == (50, 0)


def test_columns_that_are_copied_together_are_the_same() -> None:
    scores = torch.rand(3, 4, requires_grad=True)  # as of a method that predicts without torch.no_grad
    columns = [scores, torch.randint(10**9, (3, 2)), torch.rand(3, 1).bfloat16(), torch.tensor([1, 2, 3])]
    assert _start_copy(columns, is_cuda=False)() == [column.tolist() for column in columns]


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_scores_are_copied_while_a_gpu_computes_on() -> None:
    """The copies of many batches are started before the first is waited for."""
    outputs = [MethodOutput(torch.rand(5, 3), torch.rand(5, 2), torch.ones(5)) for _ in range(20)]
    on_gpu = [MethodOutput(each.logits.cuda(), each.task_weights.cuda(), each.passes.cuda()) for each in outputs]
    started = [make_predictions(each, CLASSES, top=2) for each in on_gpu]
    for each, output in zip(started, outputs, strict=True):
        for prediction, expected in zip(each, make_predictions(output, CLASSES, top=2), strict=True):
            assert prediction.label == expected.label
            assert prediction.score == pytest.approx(expected.score)
