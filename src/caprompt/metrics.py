"""Metrics of class-incremental learning: pure functions of the accuracy matrix, in percent.

Below them are metrics of one test, also in percent: confidence intervals, confusion counts, calibration and AUROC.

To add a metric, write its function and add it to `METRICS`: results, tables and reports take it from there.

`matrix[i][j]` is the accuracy on the classes of task j after learning task i; rows grow, so row i has i + 1 entries.

    >>> matrix = [[90.0], [80.0, 100.0], [70.0, 90.0, 95.0]]
    >>> average_accuracy(matrix), forgetting(matrix), backward_transfer(matrix)
    (85.0, 15.0, -15.0)
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from statistics import NormalDist, fmean, stdev
from typing import TypeVar

__all__ = [
    "METRICS",
    "Interval",
    "Matrix",
    "MeanStd",
    "Metric",
    "ReliabilityBin",
    "Scores",
    "average_accuracy",
    "average_incremental_accuracy",
    "backward_transfer",
    "compute_auroc",
    "compute_calibration_error",
    "compute_interval",
    "compute_mean_interval",
    "compute_reliability",
    "count_confusions",
    "forgetting",
    "forgetting_per_task",
    "format_interval",
    "incremental_accuracies",
    "learning_accuracy",
    "mean_std",
    "percent_correct",
    "pooled_accuracy",
    "summarize",
]

Matrix = Sequence[Sequence[float]]
Interval = tuple[float, float]  # lower and upper limit
Label = TypeVar("Label", bound=Hashable)

NUM_BINS = 15  # of a reliability diagram
Z = NormalDist().inv_cdf(0.975)  # for 95 % confidence


def percent_correct(predicted: Sequence[object], true: Sequence[object]) -> float:
    """Return the share of correct predictions: accuracy for classes, task identification for tasks.

    >>> percent_correct(["cat", "dog", "cat", "cow"], ["cat", "dog", "dog", "cow"])
    75.0
    """
    return 100 * fmean(p == t for p, t in zip(predicted, true, strict=True))


def average_accuracy(matrix: Matrix) -> float:
    """Return ACC: the mean over tasks of the accuracy on each after the last one.

    >>> average_accuracy([[90.0], [80.0, 100.0]])
    90.0
    """
    return fmean(matrix[-1])


def learning_accuracy(matrix: Matrix) -> float:
    """Return the mean over tasks of the accuracy on each right after it was learned; tasks learned together share a row.

    >>> learning_accuracy([[90.0], [80.0, 100.0]]), learning_accuracy([[70.0, 80.0]])
    (95.0, 75.0)
    """
    return fmean(accuracy for before, row in zip([(), *matrix], matrix, strict=False) for accuracy in row[len(before) :])


def pooled_accuracy(accuracies: Sequence[float], images: Sequence[int]) -> float:
    """Return the accuracy over all images together, from each task's accuracy and number of images.

    >>> pooled_accuracy([80.0, 100.0], [30, 10])
    85.0
    """
    return sum(accuracy * count for accuracy, count in zip(accuracies, images, strict=True)) / sum(images)


def forgetting_per_task(matrix: Matrix) -> list[float]:
    """Return for every task but the last the best accuracy it ever had minus the one it has now.

    >>> forgetting_per_task([[90.0], [95.0, 100.0], [70.0, 100.0, 95.0]])
    [25.0, 0.0]
    """
    last = len(matrix) - 1
    return [max(matrix[row][task] for row in range(task, last + 1)) - matrix[last][task] for task in range(last)]


def forgetting(matrix: Matrix) -> float:
    """Return AF: the mean of `forgetting_per_task`, 0 after one task.

    >>> forgetting([[90.0]]), forgetting([[90.0], [80.0, 100.0]])
    (0.0, 10.0)
    """
    lost = forgetting_per_task(matrix)
    return fmean(lost) if lost else 0.0


def incremental_accuracies(matrix: Matrix) -> list[float]:
    """Return ACC after each task.

    >>> incremental_accuracies([[90.0], [80.0, 100.0]])
    [90.0, 90.0]
    """
    return [fmean(row) for row in matrix]


def average_incremental_accuracy(matrix: Matrix) -> float:
    """Return the mean of the ACC after each task.

    >>> average_incremental_accuracy([[90.0], [80.0, 90.0]])
    87.5
    """
    return fmean(incremental_accuracies(matrix))


def backward_transfer(matrix: Matrix) -> float:
    """Return the mean change of a task's accuracy since it was learned; negative where later tasks did harm.

    >>> backward_transfer([[90.0], [80.0, 100.0]]), backward_transfer([[90.0]])
    (-10.0, 0.0)
    """
    changes = [matrix[-1][task] - matrix[task][task] for task in range(len(matrix) - 1)]
    return fmean(changes) if changes else 0.0


@dataclass(frozen=True)
class MeanStd:
    """A mean over seeds and their standard deviation; one seed has none."""

    mean: float
    std: float | None = None
    seeds: int = 1

    def text(self, digits: int) -> str:
        """Return the mean and, if there is one, the standard deviation as text.

        >>> MeanStd(79.93, 0.19, 3).text(2), MeanStd(3.0).text(1)
        ('79.93 ± 0.19', '3.0')
        """
        std = "" if self.std is None else f" ± {self.std:.{digits}f}"
        return f"{self.mean:.{digits}f}{std}"


def mean_std(values: Sequence[float]) -> MeanStd:
    """Return mean and standard deviation of the values of several seeds.

    >>> mean_std([1.0, 3.0])
    MeanStd(mean=2.0, std=1.4142135623730951, seeds=2)
    """
    return MeanStd(fmean(values), stdev(values) if len(values) > 1 else None, len(values))


@dataclass(frozen=True)
class Scores:
    """What the tests of a run measured."""

    matrix: Matrix
    images: Sequence[int]  # test images of each task, after the last one
    task_identification: float  # after the last task


@dataclass(frozen=True)
class Metric:
    """A number that summarizes a run."""

    label: str  # column heading
    description: str
    compute: Callable[[Scores], float]


METRICS: Mapping[str, Metric] = {
    "ACC": Metric(
        "ACC",
        "mean accuracy over the tasks, after the last one",
        lambda scores: average_accuracy(scores.matrix),
    ),
    "AF": Metric(
        "AF",
        "accuracy that a task has lost since its best, on average",
        lambda scores: forgetting(scores.matrix),
    ),
    "learning_accuracy": Metric(
        "when learned",
        "mean accuracy over the tasks, each right after it was learned",
        lambda scores: learning_accuracy(scores.matrix),
    ),
    "pooled": Metric(
        "pooled",
        "accuracy over all test images together",
        lambda scores: pooled_accuracy(scores.matrix[-1], scores.images),
    ),
    "average_incremental_accuracy": Metric(
        "incremental",
        "mean of the ACC after each task",
        lambda scores: average_incremental_accuracy(scores.matrix),
    ),
    "backward_transfer": Metric(
        "BWT",
        "mean change of a task's accuracy since it was learned",
        lambda scores: backward_transfer(scores.matrix),
    ),
    "task_identification": Metric(
        "task identified",
        "share of images whose most likely task is their own",
        lambda scores: scores.task_identification,
    ),
}


def summarize(scores: Scores) -> dict[str, float]:
    """Return every metric of a run, by name.

    >>> summarize(Scores([[90.0], [80.0, 100.0]], [30, 10], 95.0))["pooled"]
    85.0
    """
    return {name: metric.compute(scores) for name, metric in METRICS.items()}


def compute_interval(correct: int, total: int) -> Interval:
    """Return the 95 % confidence interval (Wilson) of an accuracy, from the numbers of correct and of all images.

    >>> [round(limit, 1) for limit in compute_interval(45, 50)], [round(limit, 1) for limit in compute_interval(1, 1)]
    ([78.6, 95.7], [20.7, 100.0])
    >>> compute_interval(0, 0)
    (0.0, 100.0)
    """
    if not total:
        return 0.0, 100.0
    share, weight = correct / total, Z * Z / total
    center = (share + weight / 2) / (1 + weight)
    half = Z * math.sqrt(share * (1 - share) / total + weight / (4 * total)) / (1 + weight)
    # At both ends the limit is exact; rounding must not move it.
    return (0.0 if correct == 0 else 100 * (center - half), 100.0 if correct == total else 100 * (center + half))


def compute_mean_interval(accuracies: Sequence[float], images: Sequence[int]) -> Interval:
    """Return the 95 % confidence interval of the mean over tasks (ACC), from each task's accuracy and number of images.

    The intervals of the tasks are combined by the method of variance estimates recovery (Zou and Donner, 2008).

    >>> [round(limit, 1) for limit in compute_mean_interval([100.0, 90.0], [10, 1000])]
    [81.1, 95.9]
    """
    mean = fmean(accuracies)
    limits = [compute_interval(round(accuracy * count / 100), count) for accuracy, count in zip(accuracies, images, strict=True)]
    below, above = (
        math.hypot(*(accuracy - limit[side] for accuracy, limit in zip(accuracies, limits, strict=True))) / len(accuracies)
        for side in (0, 1)
    )
    return max(0.0, mean - below), min(100.0, mean + above)


def format_interval(interval: Interval) -> str:
    """Return an interval as text.

    >>> format_interval((78.64, 95.65))
    '78.6 to 95.7'
    """
    low, high = interval
    return f"{low:.1f} to {high:.1f}"


def count_confusions(predicted: Sequence[Label], true: Sequence[Label]) -> dict[Label, dict[Label, int]]:
    """Return the confusion matrix: for each true class, how many images were predicted as which class; no zeros are stored.

    >>> count_confusions(["cat", "dog", "cat"], ["cat", "cat", "cow"])
    {'cat': {'cat': 1, 'dog': 1}, 'cow': {'cat': 1}}
    """
    rows: dict[Label, dict[Label, int]] = {}
    for (label, answer), count in Counter(zip(true, predicted, strict=True)).items():
        rows.setdefault(label, {})[answer] = count
    return rows


@dataclass(frozen=True)
class ReliabilityBin:
    """The images whose scores lie in one range, in percent: `low` < score <= `high`; the first range includes 0."""

    low: float
    high: float
    images: int
    mean_score: float | None  # None without images
    accuracy: float | None


def compute_reliability(scores: Sequence[float], correct: Sequence[bool]) -> tuple[ReliabilityBin, ...]:
    """Sort images by the score of their prediction, from 0 to 1, into bins of equal width.

    >>> [(round(bin.high), bin.mean_score, bin.accuracy) for bin in compute_reliability([0.5, 1.0], [False, True]) if bin.images]
    [(53, 50.0, 0.0), (100, 100.0, 100.0)]
    """
    members: list[list[tuple[float, bool]]] = [[] for _ in range(NUM_BINS)]
    for score, is_correct in zip(scores, correct, strict=True):
        members[min(max(math.ceil(score * NUM_BINS) - 1, 0), NUM_BINS - 1)].append((score, is_correct))
    return tuple(
        ReliabilityBin(
            100 * index / NUM_BINS,
            100 * (index + 1) / NUM_BINS,
            len(own),
            100 * fmean(score for score, _ in own) if own else None,
            100 * fmean(is_correct for _, is_correct in own) if own else None,
        )
        for index, own in enumerate(members)
    )


def compute_calibration_error(bins: Sequence[ReliabilityBin]) -> float:
    """Return the expected calibration error: how far score and accuracy are apart, in points, averaged over the images.

    >>> compute_calibration_error(compute_reliability([0.8, 0.8, 0.8, 0.8, 1.0], [True, True, True, False, True]))
    4.0
    """
    gaps = [
        (each.images, abs(each.mean_score - each.accuracy))
        for each in bins
        if each.mean_score is not None and each.accuracy is not None
    ]
    return sum(count * gap for count, gap in gaps) / sum(count for count, _ in gaps)


def compute_auroc(positive: Sequence[float], negative: Sequence[float]) -> float:
    """Return how often a positive score is above a negative one, in percent of all pairs; a tie counts half.

    >>> compute_auroc([0.9, 0.8, 0.4], [0.5, 0.1]), compute_auroc([0.5], [0.5])
    (83.33333333333333, 50.0)
    """
    if not positive or not negative:
        raise ValueError("AUROC needs at least one positive and one negative score")
    pairs = sorted([(score, True) for score in positive] + [(score, False) for score in negative])
    won, below = 0.0, 0  # pairs that a positive wins, and negatives below the current score
    for _, tied in groupby(pairs, key=lambda pair: pair[0]):
        kinds = [is_positive for _, is_positive in tied]
        positives, negatives = sum(kinds), len(kinds) - sum(kinds)
        won += positives * (below + negatives / 2)
        below += negatives
    return 100 * won / (len(positive) * len(negative))
