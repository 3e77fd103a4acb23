from __future__ import annotations

import numpy as np
import pytest

from caprompt.experiments.artifacts import TestPredictions
from caprompt.report.mistakes import class_figures, confused_pairs, worst_mistakes

FINAL = TestPredictions(
    classes=("cat", "dog", "cow"),
    true=np.array([0, 0, 0, 0, 1, 1, 2], dtype=np.int32),
    answer=np.array([0, 1, 1, 2, 1, 0, 2], dtype=np.int32),
    score=np.array([0.9, 0.6, 0.8, 0.7, 0.5, 0.95, 0.4], dtype=np.float32),
    cycles=(0,),
    answers=np.zeros((1, 7), dtype=np.int32),
    weights=np.ones((1, 7, 1), dtype=np.float16),
)


def test_the_surest_wrong_answers_come_first() -> None:
    found = worst_mistakes(FINAL, 3)
    assert [(each.image, each.true, each.answer) for each in found] == [(5, "dog", "cat"), (2, "cat", "dog"), (3, "cat", "cow")]
    assert found[0].score == pytest.approx(0.95)


def test_pairs_by_how_often_they_are_confused() -> None:
    first, second, third = confused_pairs(FINAL, 5)
    assert (first.true, first.answer, first.count, first.share) == ("cat", "dog", 2, 50.0)
    assert [mistake.image for mistake in first.worst] == [2, 1]
    assert {(pair.true, pair.answer) for pair in (second, third)} == {("dog", "cat"), ("cat", "cow")}
    assert len(confused_pairs(FINAL, 1)) == 1
    assert len(confused_pairs(FINAL, 1, examples=1)[0].worst) == 1


def test_classes_in_the_order_they_were_learned_in() -> None:
    cow, cat, dog = class_figures(FINAL, [["cow"], ["cat", "dog"]])
    assert (cow.name, cow.task, cow.images, cow.accuracy, cow.precision) == ("cow", 1, 1, 100.0, 50.0)
    assert (cat.task, cat.accuracy, cat.precision) == (2, 25.0, 50.0)
    assert (dog.images, dog.accuracy) == (2, 50.0)
    assert dog.precision == pytest.approx(100 / 3)
