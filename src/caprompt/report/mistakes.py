"""Errors in the final test: metrics per class, confused pairs of classes and worst mistakes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from caprompt import metrics
from caprompt.experiments.artifacts import FinalPredictions
from caprompt.metrics import Interval

__all__ = ["ClassMetrics", "ConfusedPair", "Mistake", "compute_class_metrics", "find_confused_pairs", "find_worst_mistakes"]


@dataclass(frozen=True)
class Mistake:
    """One wrong prediction."""

    image: int  # index among the test images
    true: str
    predicted: str
    score: float


@dataclass(frozen=True)
class ConfusedPair:
    """A class, and another one that its images are predicted as."""

    true: str
    predicted: str
    count: int
    images: int  # of the true class
    examples: tuple[Mistake, ...]  # the most confident first


@dataclass(frozen=True)
class ClassMetrics:
    """Metrics of one class after the last task."""

    name: str
    task: int  # counted from 1
    images: int
    accuracy: float | None  # in percent; None without test images
    interval: Interval  # of the accuracy, with 95 % confidence
    precision: float | None  # in percent; None if the class is never predicted


def find_worst_mistakes(predictions: FinalPredictions, count: int) -> list[Mistake]:
    """Return the worst mistakes: the wrong predictions with the highest scores, at most `count`."""
    wrong = np.flatnonzero(predictions.true != predictions.answer)
    most_confident = wrong[np.argsort(-predictions.score[wrong], kind="stable")][:count]
    return [_make_mistake(predictions, int(image)) for image in most_confident]


def find_confused_pairs(predictions: FinalPredictions, count: int, num_examples: int = 3) -> list[ConfusedPair]:
    """Return the most frequent pairs of true and predicted class, with their worst mistakes."""
    mistakes = find_worst_mistakes(predictions, len(predictions.true))
    num_images = Counter(predictions.classes[label] for label in predictions.true.tolist())
    frequencies = Counter((mistake.true, mistake.predicted) for mistake in mistakes)
    pairs = []
    for (true, predicted), frequency in sorted(frequencies.items(), key=lambda item: -item[1])[:count]:
        examples = tuple(mistake for mistake in mistakes if (mistake.true, mistake.predicted) == (true, predicted))
        pairs.append(ConfusedPair(true, predicted, frequency, num_images[true], examples[:num_examples]))
    return pairs


def compute_class_metrics(predictions: FinalPredictions, tasks: Sequence[Sequence[str]]) -> list[ClassMetrics]:
    """Compute accuracy and precision of every class, in the order of learning."""
    labels = {name: label for label, name in enumerate(predictions.classes)}
    rows = []
    for task, names in enumerate(tasks, start=1):
        for name in names:
            is_true, is_predicted = predictions.true == labels[name], predictions.answer == labels[name]
            correct = int((is_true & is_predicted).sum())
            images, predicted = int(is_true.sum()), int(is_predicted.sum())
            rows.append(
                ClassMetrics(
                    name,
                    task,
                    images,
                    100 * correct / images if images else None,
                    metrics.compute_interval(correct, images),
                    100 * correct / predicted if predicted else None,
                )
            )
    return rows


def _make_mistake(predictions: FinalPredictions, image: int) -> Mistake:
    true, predicted = predictions.classes[predictions.true[image]], predictions.classes[predictions.answer[image]]
    return Mistake(image, true, predicted, float(predictions.score[image]))
