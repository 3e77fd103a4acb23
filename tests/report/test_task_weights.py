from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from caprompt.experiments.artifacts import TestPredictions
from caprompt.report.task_weights import weights_by_cycle

FINAL = TestPredictions(
    classes=("cat", "dog", "cow"),
    true=np.array([0, 1, 2, 2], dtype=np.int32),
    answer=np.array([0, 1, 2, 0], dtype=np.int32),
    score=np.full(4, 0.5, dtype=np.float32),
    cycles=(1, 2),
    answers=np.array([[0, 0, 2, 0], [0, 1, 2, 0]], dtype=np.int32),
    weights=np.array([[[0.5, 0.5]] * 4, [[1, 0], [0.5, 0.5], [0.25, 0.75], [0.75, 0.25]]], dtype=np.float16),
)


def test_weights_are_averaged_over_the_images_of_each_task() -> None:
    first, second = weights_by_cycle(FINAL, [["cat", "dog"], ["cow"]])
    assert first.matrix == ((50.0, 50.0), (50.0, 50.0))
    assert (first.on_true_task, first.heaviest_right, first.accuracy) == (50.0, 0.0, 50.0)  # equal weights point nowhere
    assert second.matrix == ((75.0, 25.0), (50.0, 50.0))
    assert second.on_true_task == pytest.approx(62.5)
    assert (second.cycles, second.heaviest_right, second.accuracy) == (2, 50.0, 75.0)


def test_one_task_has_no_weights_to_tell_of() -> None:
    assert weights_by_cycle(replace(FINAL, weights=np.ones((2, 4, 1), dtype=np.float16)), [["cat", "dog", "cow"]]) == []
