"""Predictions and evaluations in terms of class names, computed from the raw output of a method."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from caprompt import metrics
from caprompt.methods.base import MethodOutput
from caprompt.protocols import HONEST

__all__ = ["Evaluation", "Prediction", "Score", "TaskScore", "make_evaluation", "make_predictions"]


@dataclass(frozen=True)
class Score:
    """A class and its probability."""

    label: str
    score: float


@dataclass(frozen=True)
class Prediction:
    """The prediction for one image."""

    label: str
    score: float
    top: tuple[Score, ...]
    task_weights: tuple[float, ...]  # share of each task's prompt in the mixture behind the prediction
    passes: int  # forward passes that it took

    def as_dict(self) -> dict[str, Any]:
        """Return a dictionary for JSON."""
        return asdict(self)


@dataclass(frozen=True)
class TaskScore:
    """Accuracy on the classes of one task, in percent."""

    task: int  # counted from 1
    classes: tuple[str, ...]
    images: int
    accuracy: float


@dataclass(frozen=True)
class Evaluation:
    """Accuracies of a model on labeled images, in percent."""

    accuracy: float  # over all images (pooled)
    average_accuracy: float  # mean over tasks (ACC)
    task_identification: float  # share of images whose most likely task is their own
    images: int
    mean_passes: float
    tasks: tuple[TaskScore, ...]
    per_class: Mapping[str, float]
    skipped: tuple[str, ...] = ()  # a sentence about each image that could not be read
    protocol: str = HONEST

    def as_dict(self) -> dict[str, Any]:
        """Return a dictionary for JSON."""
        return asdict(self)


def make_predictions(output: MethodOutput, classes: Sequence[str], top: int) -> Iterator[Prediction]:
    """Yield one prediction per image, with its `top` most likely classes."""
    scores, order = output.logits.softmax(dim=1).sort(dim=1, descending=True, stable=True)
    # Converted to lists at once: on a GPU, every row would be a synchronization.
    columns = (scores[:, :top], order[:, :top], output.task_weights, output.passes)
    for best, indices, weights, passes in zip(*(column.tolist() for column in columns), strict=True):
        ranked = tuple(Score(classes[index], score) for score, index in zip(best, indices, strict=True))
        yield Prediction(ranked[0].label, ranked[0].score, ranked, tuple(weights), int(passes))


def make_evaluation(
    output: MethodOutput,
    targets: Tensor,
    classes: Sequence[str],
    tasks: Sequence[Sequence[str]],
    skipped: Sequence[str] = (),
    protocol: str = HONEST,
) -> Evaluation:
    """Score the output for N images against their true classes (N,), indices into `classes`; each class is in one of the tasks."""
    task_of_name = {name: task for task, names in enumerate(tasks) for name in names}
    task_of_class = torch.tensor([task_of_name[name] for name in classes])
    true_tasks = task_of_class[targets]
    logits = output.logits.cpu()  # (N, C)
    predicted = logits.argmax(dim=1)
    task_probabilities = logits.softmax(dim=1) @ F.one_hot(task_of_class, len(tasks)).to(logits)  # (N, T)

    def accuracy_on(members: Tensor) -> float:
        return metrics.percent_correct(predicted[members].tolist(), targets[members].tolist())

    scores = [
        TaskScore(task + 1, tuple(names), int((true_tasks == task).sum()), accuracy_on(true_tasks == task))
        for task, names in enumerate(tasks)
        if (true_tasks == task).any()
    ]
    return Evaluation(
        accuracy=metrics.percent_correct(predicted.tolist(), targets.tolist()),
        average_accuracy=metrics.average_accuracy([[score.accuracy for score in scores]]),
        task_identification=metrics.percent_correct(task_probabilities.argmax(dim=1).tolist(), true_tasks.tolist()),
        images=len(targets),
        mean_passes=float(output.passes.double().mean()),
        skipped=tuple(skipped),
        protocol=protocol,
        tasks=tuple(scores),
        per_class={classes[label]: accuracy_on(targets == label) for label in sorted(set(targets.tolist()))},
    )
