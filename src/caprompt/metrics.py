"""Numbers from the accuracy matrix: pure functions, in percent.

`matrix[i][j]` is the accuracy on the classes of task j after learning task i; rows grow, so row i has i + 1 entries.

    >>> matrix = [[90.0], [80.0, 100.0], [70.0, 90.0, 95.0]]
    >>> average_accuracy(matrix), forgetting(matrix), backward_transfer(matrix)
    (85.0, 15.0, -15.0)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, stdev

__all__ = [
    "Matrix",
    "MeanStd",
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
]

Matrix = Sequence[Sequence[float]]


def percent_correct(predicted: Sequence[object], true: Sequence[object]) -> float:
    """The share of answers that are right: accuracy with classes, task identification with tasks.

    >>> percent_correct(["cat", "dog", "cat", "cow"], ["cat", "dog", "dog", "cow"])
    75.0
    """
    return 100 * fmean(p == t for p, t in zip(predicted, true, strict=True))


def average_accuracy(matrix: Matrix) -> float:
    """ACC: mean over tasks of the accuracy on each after the last one.

    >>> average_accuracy([[90.0], [80.0, 100.0]])
    90.0
    """
    return fmean(matrix[-1])


def learning_accuracy(matrix: Matrix) -> float:
    """Mean over tasks of the accuracy on each right after it was learned; tasks learned together stand in one row.

    >>> learning_accuracy([[90.0], [80.0, 100.0]]), learning_accuracy([[70.0, 80.0]])
    (95.0, 75.0)
    """
    return fmean(accuracy for before, row in zip([(), *matrix], matrix, strict=False) for accuracy in row[len(before) :])


def pooled_accuracy(accuracies: Sequence[float], images: Sequence[int]) -> float:
    """Accuracy over all images together, from each task's accuracy and number of images.

    >>> pooled_accuracy([80.0, 100.0], [30, 10])
    85.0
    """
    return sum(accuracy * count for accuracy, count in zip(accuracies, images, strict=True)) / sum(images)


def forgetting_per_task(matrix: Matrix) -> list[float]:
    """For every task but the last: the best accuracy it ever had minus the one it has now.

    >>> forgetting_per_task([[90.0], [95.0, 100.0], [70.0, 100.0, 95.0]])
    [25.0, 0.0]
    """
    last = len(matrix) - 1
    return [max(matrix[row][task] for row in range(task, last + 1)) - matrix[last][task] for task in range(last)]


def forgetting(matrix: Matrix) -> float:
    """AF: the mean of `forgetting_per_task`; nothing can have been forgotten after one task.

    >>> forgetting([[90.0]]), forgetting([[90.0], [80.0, 100.0]])
    (0.0, 10.0)
    """
    lost = forgetting_per_task(matrix)
    return fmean(lost) if lost else 0.0


def incremental_accuracies(matrix: Matrix) -> list[float]:
    """ACC after each task.

    >>> incremental_accuracies([[90.0], [80.0, 100.0]])
    [90.0, 90.0]
    """
    return [fmean(row) for row in matrix]


def average_incremental_accuracy(matrix: Matrix) -> float:
    """Mean over the stream of the ACC after each task.

    >>> average_incremental_accuracy([[90.0], [80.0, 90.0]])
    87.5
    """
    return fmean(incremental_accuracies(matrix))


def backward_transfer(matrix: Matrix) -> float:
    """Mean change of a task's accuracy since it was learned; negative where later tasks did harm.

    >>> backward_transfer([[90.0], [80.0, 100.0]]), backward_transfer([[90.0]])
    (-10.0, 0.0)
    """
    changes = [matrix[-1][task] - matrix[task][task] for task in range(len(matrix) - 1)]
    return fmean(changes) if changes else 0.0


@dataclass(frozen=True)
class MeanStd:
    """A mean over seeds and their standard deviation; one seed has none."""

    mean: float
    spread: float | None = None
    seeds: int = 1

    def text(self, digits: int) -> str:
        """As people read it.

        >>> MeanStd(79.93, 0.19, 3).text(2), MeanStd(3.0).text(1)
        ('79.93 ± 0.19', '3.0')
        """
        spread = "" if self.spread is None else f" ± {self.spread:.{digits}f}"
        return f"{self.mean:.{digits}f}{spread}"


def mean_std(values: Sequence[float]) -> MeanStd:
    """The figure of several seeds.

    >>> mean_std([1.0, 3.0])
    MeanStd(mean=2.0, spread=1.4142135623730951, seeds=2)
    """
    return MeanStd(fmean(values), stdev(values) if len(values) > 1 else None, len(values))
