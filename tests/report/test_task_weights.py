from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from caprompt.experiments.artifacts import FinalPredictions
from caprompt.report.task_weights import summarize_task_weights

PREDICTIONS = FinalPredictions(
    classes=("cat", "dog", "cow"),
    true=np.array([0, 1, 2, 2], dtype=np.int32),
    answer=np.array([0, 1, 2, 0], dtype=np.int32),
    score=np.full(4, 0.5, dtype=np.float32),
    cycles=(1, 2),
    answers=np.array([[0, 0, 2, 0], [0, 1, 2, 0]], dtype=np.int32),
    weights=np.array([[[0.5, 0.5]] * 4, [[1, 0], [0.5, 0.5], [0.25, 0.75], [0.75, 0.25]]], dtype=np.float16),
)


def test_weights_are_averaged_over_the_images_of_each_task() -> None:
    first, second = summarize_task_weights(PREDICTIONS, [["cat", "dog"], ["cow"]])
    assert first.matrix == ((50.0, 50.0), (50.0, 50.0))
    assert (first.true_task_weight, first.top_task_correct, first.accuracy) == (50.0, 0.0, 50.0)  # equal weights identify no task
    assert second.matrix == ((75.0, 25.0), (50.0, 50.0))
    assert second.true_task_weight == pytest.approx(62.5)
    assert (second.cycles, second.top_task_correct, second.accuracy) == (2, 50.0, 75.0)


def test_single_task_has_no_weights() -> None:
    assert summarize_task_weights(replace(PREDICTIONS, weights=np.ones((2, 4, 1), dtype=np.float16)), [["cat", "dog", "cow"]]) == []
