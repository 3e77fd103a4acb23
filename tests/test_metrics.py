from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from caprompt import metrics

accuracy = st.floats(0, 100)


@st.composite
def matrices(draw: st.DrawFn) -> list[list[float]]:
    tasks = draw(st.integers(1, 6))
    return [[draw(accuracy) for _ in range(row + 1)] for row in range(tasks)]


@given(matrices())
def test_metrics_are_bounded(matrix: list[list[float]]) -> None:
    assert 0 <= metrics.average_accuracy(matrix) <= 100 + 1e-9
    assert 0 <= metrics.forgetting(matrix) <= 100
    assert metrics.backward_transfer(matrix) >= -metrics.forgetting(matrix) - 1e-9


@given(matrices())
def test_forgetting_is_the_drop_from_the_best_accuracy(matrix: list[list[float]]) -> None:
    for task, lost in enumerate(metrics.forgetting_per_task(matrix)):
        column = [row[task] for row in matrix[task:]]
        assert lost == pytest.approx(max(column) - column[-1])


def test_pooled_accuracy_weights_tasks_by_images() -> None:
    assert metrics.pooled_accuracy([100.0, 0.0], [90, 10]) == pytest.approx(90)
    assert metrics.average_accuracy([[50.0], [100.0, 0.0]]) == 50


def test_average_incremental_accuracy_is_the_mean_of_row_means() -> None:
    assert metrics.average_incremental_accuracy([[100.0], [50.0, 70.0], [0.0, 30.0, 60.0]]) == pytest.approx((100 + 60 + 30) / 3)


def test_lengths_must_match() -> None:
    with pytest.raises(ValueError):
        metrics.percent_correct([1, 2], [1])
    with pytest.raises(ValueError):
        metrics.pooled_accuracy([1.0], [1, 2])
