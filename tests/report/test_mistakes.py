from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from caprompt.experiments.artifacts import FinalPredictions
from caprompt.metrics import compute_interval
from caprompt.report.mistakes import compute_class_metrics, find_confused_pairs, find_worst_mistakes

PREDICTIONS = FinalPredictions(
    classes=("cat", "dog", "cow"),
    true=np.array([0, 0, 0, 0, 1, 1, 2], dtype=np.int32),
    answer=np.array([0, 1, 1, 2, 1, 0, 2], dtype=np.int32),
    score=np.array([0.9, 0.6, 0.8, 0.7, 0.5, 0.95, 0.4], dtype=np.float32),
    cycles=(0,),
    answers=np.zeros((1, 7), dtype=np.int32),
    weights=np.ones((1, 7, 1), dtype=np.float16),
)


def test_most_confident_mistakes_come_first() -> None:
    mistakes = find_worst_mistakes(PREDICTIONS, 3)
    assert [(each.image, each.true, each.predicted) for each in mistakes] == [
        (5, "dog", "cat"),
        (2, "cat", "dog"),
        (3, "cat", "cow"),
    ]
    assert mistakes[0].score == pytest.approx(0.95)


def test_pairs_are_sorted_by_frequency() -> None:
    first, second, third = find_confused_pairs(PREDICTIONS, 5)
    assert (first.true, first.predicted, first.count, first.images) == ("cat", "dog", 2, 4)
    assert [mistake.image for mistake in first.examples] == [2, 1]
    assert {(pair.true, pair.predicted) for pair in (second, third)} == {("dog", "cat"), ("cat", "cow")}
    assert len(find_confused_pairs(PREDICTIONS, 1)) == 1
    assert len(find_confused_pairs(PREDICTIONS, 1, num_examples=1)[0].examples) == 1


def test_class_metrics_are_in_the_order_of_learning() -> None:
    cow, cat, dog = compute_class_metrics(PREDICTIONS, [["cow"], ["cat", "dog"]])
    assert (cow.name, cow.task, cow.images, cow.accuracy, cow.precision) == ("cow", 1, 1, 100.0, 50.0)
    assert (cat.task, cat.accuracy, cat.precision) == (2, 25.0, 50.0)
    assert (dog.images, dog.accuracy) == (2, 50.0)
    assert dog.precision == pytest.approx(100 / 3)


def test_class_without_test_images_has_no_accuracy() -> None:
    *_, owl = compute_class_metrics(replace(PREDICTIONS, classes=("cat", "dog", "cow", "owl")), [["cat", "dog", "cow"], ["owl"]])
    assert (owl.images, owl.accuracy, owl.interval, owl.precision) == (0, None, (0.0, 100.0), None)


def test_class_metrics_have_intervals() -> None:
    (cat, *_) = compute_class_metrics(PREDICTIONS, [["cat", "dog", "cow"]])
    assert cat.interval == compute_interval(1, 4)
