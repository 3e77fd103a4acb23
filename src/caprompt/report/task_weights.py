"""Task weights in the final test, by number of cycles.

They say which tasks' prompts the images of each task were processed with.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from caprompt import metrics
from caprompt.experiments.artifacts import FinalPredictions

__all__ = ["CycleMetrics", "summarize_task_weights"]


@dataclass(frozen=True)
class CycleMetrics:
    """Task weights and accuracy with one number of cycles, in percent."""

    cycles: int  # 0 for a method without cycles
    matrix: tuple[tuple[float, ...], ...]  # [true task][task]: mean weight
    true_task_weight: float  # mean weight of the true task
    top_task_correct: float  # share of images whose true task has the largest weight
    accuracy: float  # over all images


def summarize_task_weights(predictions: FinalPredictions, tasks: Sequence[Sequence[str]]) -> list[CycleMetrics]:
    """Summarize the weights for each number of cycles.

    The list is empty for a single task, whose weight is always one.
    """
    if predictions.weights.shape[2] < 2:
        return []
    task_of_class = {name: task for task, names in enumerate(tasks) for name in names}
    true_task = np.array([task_of_class[name] for name in predictions.classes])[predictions.true]  # (N,)
    return [
        _summarize_cycle(
            cycles, predictions.weights[index].astype(np.float64), predictions.answers[index], predictions.true, true_task
        )
        for index, cycles in enumerate(predictions.cycles)
    ]


def _summarize_cycle(
    cycles: int,
    weights: NDArray[np.float64],  # (N, T)
    predicted: NDArray[np.int32],  # (N,)
    true: NDArray[np.int32],  # (N,)
    true_task: NDArray[np.int64],  # (N,)
) -> CycleMetrics:
    tasks = weights.shape[1]
    rows = [
        100 * weights[true_task == task].mean(axis=0) if (true_task == task).any() else np.zeros(tasks) for task in range(tasks)
    ]
    ordered = np.sort(weights, axis=1)
    decided = ordered[:, -1] - ordered[:, -2] > 1e-3  # equal weights identify no task
    return CycleMetrics(
        cycles=cycles,
        matrix=tuple(tuple(float(value) for value in row) for row in rows),
        true_task_weight=100 * float(weights[np.arange(len(true_task)), true_task].mean()),
        top_task_correct=100 * float(((weights.argmax(axis=1) == true_task) & decided).mean()),
        accuracy=metrics.percent_correct(predicted.tolist(), true.tolist()),
    )
