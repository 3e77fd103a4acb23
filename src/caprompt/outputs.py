"""Predictions and evaluations in terms of class names, computed from the raw output of a method."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from caprompt import metrics
from caprompt.data.images import ImageInput
from caprompt.data.labels import Label
from caprompt.errors import InputError
from caprompt.methods.base import MethodOutput
from caprompt.metrics import Interval, ReliabilityBin
from caprompt.protocols import HONEST

__all__ = [
    "Confusion",
    "Evaluation",
    "Mistake",
    "Prediction",
    "Score",
    "TaskScore",
    "UnknownScore",
    "compute_known_scores",
    "compute_probabilities",
    "count_plausible",
    "make_evaluation",
    "make_predictions",
    "make_unknown_score",
    "map_to_tasks",
]


@dataclass(frozen=True)
class Score:
    """A class and its probability."""

    label: Label
    score: float


@dataclass(frozen=True)
class Prediction:
    """The prediction for one image."""

    label: Label  # an integer if the class was taught as one
    score: float
    top: tuple[Score, ...]
    task_weights: tuple[float, ...]  # share of each task's prompt in the mixture behind the prediction
    passes: int  # forward passes that it took
    unknown: bool = False  # whether the image is probably of none of the learned classes
    prediction_set: tuple[Label, ...] = ()  # the fewest classes that hold the true one with the probability that was asked for

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
    interval: Interval  # of the accuracy, with 95 % confidence


@dataclass(frozen=True)
class Confusion:
    """A class, and another one that some of its images were taken for."""

    label: str
    predicted: str
    count: int
    images: int  # of the class

    def describe(self) -> str:
        """Return a sentence.

        >>> Confusion("cat", "dog", 12, 50).describe()
        "12 of 50 'cat' were taken for 'dog'"
        """
        return f"{self.count} of {self.images} '{self.label}' {'was' if self.count == 1 else 'were'} taken for '{self.predicted}'"


@dataclass(frozen=True)
class Mistake:
    """A wrong prediction."""

    image: int  # index among the tested images
    path: str | None  # None for an image in memory
    label: str
    predicted: str
    score: float


@dataclass(frozen=True)
class UnknownScore:
    """How well images of classes that were not learned are told from the others, by the score of `compute_known_scores`."""

    images: int
    auroc: float  # in percent; 50 is chance
    flagged: float | None = None  # share of these images below the threshold, in percent; None without a threshold
    falsely_flagged: float | None = None  # share of the images of learned classes below it


@dataclass(frozen=True)
class Evaluation:
    """Accuracies of a model on labeled images, in percent, and its mistakes. Intervals are of 95 % confidence (Wilson)."""

    accuracy: float  # over all images (pooled)
    interval: Interval  # of `accuracy`
    average_accuracy: float  # mean over tasks (ACC)
    average_interval: Interval  # of `average_accuracy`
    task_identification: float  # share of images whose most likely task is their own
    images: int
    mean_passes: float
    tasks: tuple[TaskScore, ...]
    per_class: Mapping[str, float]  # of the classes that have images
    intervals: Mapping[str, Interval]  # of `per_class`
    images_per_class: Mapping[str, int]  # of all learned classes, in the order of learning
    confusion: Mapping[str, Mapping[str, int]]  # true class, predicted class, number of images; no zeros
    mistakes: tuple[Mistake, ...]  # the highest scores first
    reliability: tuple[ReliabilityBin, ...]  # accuracy by score
    calibration_error: float  # mean distance of score and accuracy over the bins, in points (ECE)
    skipped: tuple[str, ...] = ()  # a sentence about each image that could not be read, and about classes that were left out
    protocol: str = HONEST
    unlearned: Mapping[str, int] = field(default_factory=dict)  # images of each class that was not learned; not in the accuracies
    unknown: UnknownScore | None = None  # of these images, with unknown="count"

    def as_dict(self) -> dict[str, Any]:
        """Return a dictionary for JSON."""
        return asdict(self)

    def list_classes(self) -> list[str]:
        """List the classes that have images, the lowest accuracy first; of equal ones, that of more images first."""
        return sorted(self.per_class, key=lambda name: (self.per_class[name], -self.images_per_class[name]))

    def list_confusions(self) -> list[Confusion]:
        """List the confusions, the most frequent first; of equally frequent ones, that of the larger share of its class first."""
        confusions = [
            Confusion(label, predicted, count, self.images_per_class[label])
            for label, row in self.confusion.items()
            for predicted, count in row.items()
            if predicted != label
        ]
        return sorted(confusions, key=lambda each: (-each.count, each.images))


def compute_probabilities(output: MethodOutput) -> Tensor:
    """Return the probability of every class for N images (N, C): the scores that predictions and evaluations report."""
    return output.logits.softmax(dim=1)


def compute_known_scores(output: MethodOutput) -> Tensor:
    """Return how likely each of N images is of a learned class (N,), from 0 to 1: the probability of its most likely class."""
    return compute_probabilities(output).amax(dim=1)


def make_predictions(
    output: MethodOutput, classes: Sequence[Label], top: int, mass: float | None = None, threshold: float | None = None
) -> Iterator[Prediction]:
    """Return an iterator over one prediction per image, with its `top` most likely classes.

    With `mass`, each has the set of the most likely classes whose probabilities add up to that much. An image whose highest
    probability is below `threshold` counts as unknown. On a GPU, the scores are copied to the host from now on, and the iterator
    waits for them: what is computed meanwhile does not wait.
    """
    scores, order = compute_probabilities(output).sort(dim=1, descending=True, stable=True)
    columns = [scores[:, :top], order[:, :top], output.task_weights, output.passes]
    if mass is not None:
        columns = [columns[0], order, *columns[2:], count_plausible(scores, mass)]
    return _iter_predictions(_start_copy(columns, scores.is_cuda), classes, threshold)


def _iter_predictions(
    get_columns: Callable[[], list[list[Any]]], classes: Sequence[Label], threshold: float | None
) -> Iterator[Prediction]:
    best, indices, weights, passes, *counts = get_columns()
    sets = [[]] * len(passes) if not counts else [row[:size] for row, size in zip(indices, counts[0], strict=True)]
    for own_scores, own_indices, own_weights, own_passes, members in zip(best, indices, weights, passes, sets, strict=True):
        ranked = tuple([Score(classes[index], score) for score, index in zip(own_scores, own_indices, strict=False)])
        is_unknown = threshold is not None and own_scores[0] < threshold
        plausible = tuple([classes[index] for index in members])
        yield Prediction(ranked[0].label, own_scores[0], ranked, tuple(own_weights), int(own_passes), is_unknown, plausible)


def _start_copy(columns: Sequence[Tensor], is_cuda: bool) -> Callable[[], list[list[Any]]]:
    """Start to copy tensors of N rows to the host, in one copy; return the function that waits for it and returns them as lists.

    >>> _start_copy([torch.tensor([[0.5, 0.25]]), torch.tensor([3])], is_cuda=False)()
    [[[0.5, 0.25]], [3]]
    """
    # A float64 holds every float32, and every integer that occurs here, exactly. An empty column makes all of them one.
    flat = [column if column.dim() == 2 else column.reshape(len(column), -1) for column in columns]
    joined = torch.cat([*flat, flat[0].new_empty((len(flat[0]), 0), dtype=torch.float64)], dim=1).detach()
    is_copied = None
    if is_cuda:
        on_device, joined = joined, torch.empty(joined.shape, dtype=joined.dtype, pin_memory=True)
        joined.copy_(on_device, non_blocking=True)
        is_copied = torch.cuda.Event()
        is_copied.record()

    def finish() -> list[list[Any]]:
        if is_copied is not None:
            is_copied.synchronize()
        table, start, parts = joined.numpy(), 0, []  # NumPy takes a small part of the time of PyTorch to cut a few numbers up
        for column, width in zip(columns, [each.shape[1] for each in flat], strict=True):
            part = table[:, start : start + width].reshape(tuple(column.shape))
            parts.append((part if column.is_floating_point() else part.astype(np.int64)).tolist())
            start += width
        return parts

    return finish


def count_plausible(scores: Tensor, mass: float) -> Tensor:
    """Return how many of the most likely classes have probabilities that add up to `mass`: sorted (N, C) -> (N,).

    >>> count_plausible(torch.tensor([[0.95, 0.04, 0.01], [0.6, 0.25, 0.15]]), 0.9)
    tensor([1, 3])
    """
    return ((scores.cumsum(dim=1) < mass).sum(dim=1) + 1).clamp_max(scores.shape[1])


def make_evaluation(
    output: MethodOutput,
    targets: Tensor,
    classes: Sequence[str],
    tasks: Sequence[Sequence[str]],
    skipped: Sequence[str] = (),
    protocol: str = HONEST,
    images: Sequence[ImageInput] = (),
) -> Evaluation:
    """Score the output for N images against their true classes (N,), indices into `classes`; each class is in one of the tasks.

    `images` are the images themselves, for the paths of those that were classified wrongly.
    """
    task_of_class = torch.tensor(map_to_tasks(classes, tasks))
    true_tasks = task_of_class[targets]
    probabilities = compute_probabilities(output).cpu()  # (N, C)
    scores, predicted = probabilities.nan_to_num(0.0).max(dim=1)  # of equal ones, the first class, as in `make_predictions`
    task_probabilities = probabilities @ F.one_hot(task_of_class, len(tasks)).to(probabilities)  # (N, T)
    is_correct = predicted == targets
    reliability = metrics.compute_reliability(scores.tolist(), is_correct.tolist())
    counts, correct = (torch.bincount(indices, minlength=len(classes)).tolist() for indices in (targets, targets[is_correct]))
    tested = [label for label, count in enumerate(counts) if count]
    answers, labels = ([classes[index] for index in indices.tolist()] for indices in (predicted, targets))
    task_scores = [_score_task(task, tasks, is_correct[true_tasks == task]) for task in sorted(set(true_tasks.tolist()))]
    accuracies = [score.accuracy for score in task_scores]
    return Evaluation(
        accuracy=_percent(sum(correct), len(targets)),
        interval=metrics.compute_interval(sum(correct), len(targets)),
        average_accuracy=metrics.average_accuracy([accuracies]),
        average_interval=metrics.compute_mean_interval(accuracies, [score.images for score in task_scores]),
        task_identification=metrics.percent_correct(task_probabilities.argmax(dim=1).tolist(), true_tasks.tolist()),
        images=len(targets),
        mean_passes=float(output.passes.double().mean()),
        tasks=tuple(task_scores),
        per_class={classes[label]: _percent(correct[label], counts[label]) for label in tested},
        intervals={classes[label]: metrics.compute_interval(correct[label], counts[label]) for label in tested},
        images_per_class=dict(zip(classes, counts, strict=True)),
        confusion=metrics.count_confusions(answers, labels),
        mistakes=tuple(_list_mistakes(answers, labels, scores.tolist(), images)),
        reliability=reliability,
        calibration_error=metrics.compute_calibration_error(reliability),
        skipped=tuple(skipped),
        protocol=protocol,
    )


def make_unknown_score(known: MethodOutput, unknown: MethodOutput, threshold: float | None = None) -> UnknownScore:
    """Score how well the images of classes that were not learned (`unknown`) are told from the others (`known`)."""
    known_scores, unknown_scores = (compute_known_scores(output).nan_to_num(0.0).tolist() for output in (known, unknown))

    def share_below(scores: Sequence[float]) -> float | None:
        return None if threshold is None else _percent(sum(score < threshold for score in scores), len(scores))

    auroc = metrics.compute_auroc(known_scores, unknown_scores)
    return UnknownScore(len(unknown_scores), auroc, share_below(unknown_scores), share_below(known_scores))


def map_to_tasks(classes: Sequence[str], tasks: Sequence[Sequence[str]]) -> list[int]:
    """Return the task of each class; raise unless it is in exactly one."""
    task_of_name = {name: task for task, names in enumerate(tasks) for name in names}
    frequencies = Counter(name for names in tasks for name in names)
    for name in classes:
        if frequencies[name] != 1:
            where = f"in {frequencies[name]} of the given tasks" if frequencies[name] else "in none of the given tasks"
            raise InputError(f"class '{name}' is {where}; put every learned class into exactly one")
    return [task_of_name[name] for name in classes]


def _score_task(task: int, tasks: Sequence[Sequence[str]], is_correct: Tensor) -> TaskScore:
    correct, images = int(is_correct.sum()), len(is_correct)
    return TaskScore(task + 1, tuple(tasks[task]), images, _percent(correct, images), metrics.compute_interval(correct, images))


def _list_mistakes(
    predicted: Sequence[str], labels: Sequence[str], scores: Sequence[float], images: Sequence[ImageInput]
) -> list[Mistake]:
    """List the wrong predictions, those with the highest scores first."""
    paths = [str(image) if isinstance(image, Path) else None for image in images] or [None] * len(labels)
    rows = zip(paths, labels, predicted, scores, strict=True)
    mistakes = [Mistake(index, *row) for index, row in enumerate(rows) if row[1] != row[2]]
    return sorted(mistakes, key=lambda mistake: -mistake.score)


def _percent(count: int, total: int) -> float:
    return 100 * (count / total)  # exactly as `metrics.percent_correct` computes it
