from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binomtest
from sklearn.metrics import roc_auc_score

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


@pytest.mark.parametrize(("correct", "total"), [(0, 1), (1, 1), (0, 7), (7, 7), (3, 10), (9_990, 10_000)])
def test_interval_is_that_of_wilson(correct: int, total: int) -> None:
    reference = binomtest(correct, total).proportion_ci(confidence_level=0.95, method="wilson")
    assert metrics.compute_interval(correct, total) == pytest.approx((100 * reference.low, 100 * reference.high), abs=1e-9)


@given(st.integers(0, 200), st.integers(0, 200))
def test_interval_contains_the_accuracy(correct: int, wrong: int) -> None:
    total = correct + wrong
    low, high = metrics.compute_interval(correct, total)
    assert 0 <= low <= high <= 100
    assert not total or low - 1e-9 <= 100 * correct / total <= high + 1e-9


@given(st.lists(st.tuples(st.integers(0, 20), st.integers(1, 20)), min_size=1, max_size=6))
def test_interval_of_a_mean(tasks: list[tuple[int, int]]) -> None:
    correct, images = [min(right, count) for right, count in tasks], [count for _, count in tasks]
    accuracies = [100 * right / count for right, count in zip(correct, images, strict=True)]
    low, high = metrics.compute_mean_interval(accuracies, images)
    assert 0 <= low <= sum(accuracies) / len(accuracies) + 1e-9
    assert sum(accuracies) / len(accuracies) - 1e-9 <= high <= 100
    if len(tasks) == 1:
        assert (low, high) == pytest.approx(metrics.compute_interval(correct[0], images[0]))


@given(st.lists(st.tuples(st.floats(0, 1), st.booleans()), min_size=1, max_size=60))
def test_calibration_error_computed_directly(pairs: list[tuple[float, bool]]) -> None:
    scores, correct = np.array([score for score, _ in pairs]), np.array([right for _, right in pairs])
    bins = metrics.compute_reliability(scores.tolist(), correct.tolist())
    assert len(bins) == metrics.NUM_BINS
    assert sum(each.images for each in bins) == len(pairs)
    members = np.clip(np.ceil(scores * metrics.NUM_BINS) - 1, 0, metrics.NUM_BINS - 1)
    gaps = [
        (members == number).mean() * abs(scores[members == number].mean() - correct[members == number].mean())
        for number in np.unique(members)
    ]
    assert metrics.compute_calibration_error(bins) == pytest.approx(100 * sum(gaps), abs=1e-9)


def test_scores_at_the_edges_of_bins() -> None:
    bins = metrics.compute_reliability([0.0, 1.0, 1.0], [False, True, True])
    assert [(each.images, each.accuracy) for each in bins] == [(1, 0.0), *[(0, None)] * 13, (2, 100.0)]
    assert (bins[0].low, bins[-1].high) == (0, 100)


@given(
    st.lists(st.sampled_from([0.1, 0.2, 0.5, 0.9]), min_size=1, max_size=20),
    st.lists(st.sampled_from([0.1, 0.2, 0.5, 0.9]), min_size=1, max_size=20),
)
def test_auroc_with_ties(positive: list[float], negative: list[float]) -> None:
    expected = roc_auc_score([1] * len(positive) + [0] * len(negative), positive + negative)
    assert metrics.compute_auroc(positive, negative) == pytest.approx(100 * expected)


def test_auroc_needs_both_kinds() -> None:
    with pytest.raises(ValueError, match="at least one"):
        metrics.compute_auroc([0.5], [])


@given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4)), max_size=40))
def test_confusions_add_up_and_hold_no_zeros(pairs: list[tuple[int, int]]) -> None:
    matrix = metrics.count_confusions([answer for _, answer in pairs], [label for label, _ in pairs])
    counts = [count for row in matrix.values() for count in row.values()]
    assert sum(counts) == len(pairs)
    assert all(counts)
    assert sum(row.get(label, 0) for label, row in matrix.items()) == sum(label == answer for label, answer in pairs)
