"""Task weights by cycle: how much of which task's prompt the test images of each task were seen through."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from caprompt import metrics
from caprompt.experiments.artifacts import TestPredictions

__all__ = ["CycleFigures", "weights_by_cycle"]


@dataclass(frozen=True)
class CycleFigures:
    """What one number of cycles does, in percent."""

    cycles: int  # 0 for a method without cycles
    matrix: tuple[tuple[float, ...], ...]  # [true task][task]: mean weight
    on_true_task: float  # mean weight of the right task
    heaviest_right: float  # how often the right task weighs most
    accuracy: float  # over all images


def weights_by_cycle(final: TestPredictions, tasks: Sequence[Sequence[str]]) -> list[CycleFigures]:
    """The figures of each number of cycles; nothing where there is one task, whose weight is always one."""
    if final.weights.shape[2] < 2:
        return []
    number = {name: task for task, names in enumerate(tasks) for name in names}
    own = np.array([number[name] for name in final.classes])[final.true]  # (N,), the task of each image
    return [
        _figures(cycles, final.weights[at].astype(np.float64), final.answers[at], final.true, own)
        for at, cycles in enumerate(final.cycles)
    ]


def _figures(
    cycles: int, weights: NDArray[np.float64], answers: NDArray[np.int32], true: NDArray[np.int32], own: NDArray[np.int64]
) -> CycleFigures:
    tasks = weights.shape[1]
    rows = [100 * weights[own == task].mean(axis=0) if (own == task).any() else np.zeros(tasks) for task in range(tasks)]
    ordered = np.sort(weights, axis=1)
    decided = ordered[:, -1] - ordered[:, -2] > 1e-3  # equal weights point to no task
    return CycleFigures(
        cycles=cycles,
        matrix=tuple(tuple(float(value) for value in row) for row in rows),
        on_true_task=100 * float(weights[np.arange(len(own)), own].mean()),
        heaviest_right=100 * float(((weights.argmax(axis=1) == own) & decided).mean()),
        accuracy=metrics.percent_correct(answers.tolist(), true.tolist()),
    )
