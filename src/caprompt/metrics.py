"""Metrics of class-incremental learning: pure functions of the accuracy matrix, in percent.

To add a metric, write its function and add it to `METRICS`: results, tables and reports take it from there.

`matrix[i][j]` is the accuracy on the classes of task j after learning task i; rows grow, so row i has i + 1 entries.

    >>> matrix = [[90.0], [80.0, 100.0], [70.0, 90.0, 95.0]]
    >>> average_accuracy(matrix), forgetting(matrix), backward_transfer(matrix)
    (85.0, 15.0, -15.0)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev

__all__ = [
    "METRICS",
    "Matrix",
    "MeanStd",
    "Metric",
    "Scores",
    "average_accuracy",
    "average_incremental_accuracy",
    "backward_transfer",
    "forgetting",
    "forgetting_per_task",
    "incremental_accuracies",
    "learning_accuracy",
    "mean_std",
    "percent_correct",
    "pooled_accuracy",
    "summarize",
]

Matrix = Sequence[Sequence[float]]


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
