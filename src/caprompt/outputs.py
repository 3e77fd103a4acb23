"""What a model says: of one image (`Prediction`), and of labelled images (`Evaluation`), in people's labels."""

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
    """The answer for one image."""

    label: str
    score: float
    top: tuple[Score, ...]
    task_weights: tuple[float, ...]  # how much of each task's prompt went into the answer
    passes: int  # forward passes it took

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self)


@dataclass(frozen=True)
class TaskScore:
    """Accuracy on the classes that one task brought, in percent."""

    task: int  # counted from 1
    classes: tuple[str, ...]
    images: int
    accuracy: float


@dataclass(frozen=True)
class Evaluation:
    """How well a model does on labelled images, in percent."""

    accuracy: float  # over all images (pooled)
    average_accuracy: float  # mean over tasks (ACC)
    task_identification: float  # how often the likeliest task is the right one
    images: int
    mean_passes: float
    tasks: tuple[TaskScore, ...]
    per_class: Mapping[str, float]
    skipped: tuple[str, ...] = ()  # a sentence about each image that could not be read
    protocol: str = HONEST

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self)


def make_predictions(answer: MethodOutput, classes: Sequence[str], top: int) -> Iterator[Prediction]:
    """One prediction per image of a batch, with its `top` likeliest classes."""
    scores, order = answer.logits.softmax(dim=1).sort(dim=1, descending=True, stable=True)
    # As lists at once: from a GPU, every row would be waited for.
    parts = (scores[:, :top], order[:, :top], answer.task_weights, answer.passes)
    for best, indices, weights, passes in zip(*(part.tolist() for part in parts), strict=True):
        ranked = tuple(Score(classes[index], score) for score, index in zip(best, indices, strict=True))
        yield Prediction(ranked[0].label, ranked[0].score, ranked, tuple(weights), int(passes))


def make_evaluation(
    answers: Sequence[MethodOutput],
    true: Tensor,
    classes: Sequence[str],
    tasks: Sequence[Sequence[str]],
    skipped: Sequence[str] = (),
    protocol: str = HONEST,
) -> Evaluation:
    """Score answers against the true classes (N,). `classes` are as the answers number them; each is in one of the tasks."""
    number = {name: task for task, names in enumerate(tasks) for name in names}
    task_of_class = torch.tensor([number[name] for name in classes])
    true_task = task_of_class[true]
    logits = torch.cat([answer.logits for answer in answers]).cpu()  # (N, C)
    guess = logits.argmax(dim=1)
    sum_by_task = logits.softmax(dim=1) @ F.one_hot(task_of_class, len(tasks)).to(logits)  # (N, T)

    def right(members: Tensor) -> float:
        return metrics.percent_correct(guess[members].tolist(), true[members].tolist())

    scores = [
        TaskScore(task + 1, tuple(names), int((true_task == task).sum()), right(true_task == task))
        for task, names in enumerate(tasks)
        if (true_task == task).any()
    ]
    return Evaluation(
        accuracy=metrics.percent_correct(guess.tolist(), true.tolist()),
        average_accuracy=metrics.average_accuracy([[score.accuracy for score in scores]]),
        task_identification=metrics.percent_correct(sum_by_task.argmax(dim=1).tolist(), true_task.tolist()),
        images=len(true),
        mean_passes=float(torch.cat([answer.passes for answer in answers]).double().mean()),
        skipped=tuple(skipped),
        protocol=protocol,
        tasks=tuple(scores),
        per_class={classes[label]: right(true == label) for label in sorted(set(true.tolist()))},
    )
