"""Mistakes of the final test: which classes are taken for which, and the wrong answers that the model was surest of."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from caprompt.experiments.artifacts import TestPredictions

__all__ = ["ClassFigures", "Mistake", "Pair", "class_figures", "confused_pairs", "worst_mistakes"]


@dataclass(frozen=True)
class Mistake:
    """One wrong answer."""

    image: int  # position among the test images
    true: str
    answer: str
    score: float


@dataclass(frozen=True)
class Pair:
    """A class that is taken for another."""

    true: str
    answer: str
    count: int
    share: float  # of the true class's images, in percent
    worst: tuple[Mistake, ...]  # the surest first


@dataclass(frozen=True)
class ClassFigures:
    """How one class fares at the end."""

    name: str
    task: int  # counted from 1
    images: int
    accuracy: float  # in percent
    precision: float | None  # how often the answer is right where it is this class; None if it is never given


def worst_mistakes(final: TestPredictions, count: int) -> list[Mistake]:
    """The wrong answers with the highest scores."""
    wrong = np.flatnonzero(final.true != final.answer)
    surest = wrong[np.argsort(-final.score[wrong], kind="stable")][:count]
    return [_mistake(final, int(image)) for image in surest]


def confused_pairs(final: TestPredictions, count: int, examples: int = 3) -> list[Pair]:
    """The pairs of true class and answer that occur most often, each with its surest mistakes."""
    mistakes = worst_mistakes(final, len(final.true))
    images = Counter(final.classes[number] for number in final.true.tolist())
    often = Counter((mistake.true, mistake.answer) for mistake in mistakes)
    pairs = []
    for (true, answer), number in sorted(often.items(), key=lambda item: -item[1])[:count]:
        own = tuple(mistake for mistake in mistakes if (mistake.true, mistake.answer) == (true, answer))
        pairs.append(Pair(true, answer, number, 100 * number / images[true], own[:examples]))
    return pairs


def class_figures(final: TestPredictions, tasks: Sequence[Sequence[str]]) -> list[ClassFigures]:
    """Every class in the order it was learned in."""
    number = {name: position for position, name in enumerate(final.classes)}
    rows = []
    for task, names in enumerate(tasks, start=1):
        for name in names:
            own, given = final.true == number[name], final.answer == number[name]
            right = int((own & given).sum())
            precision = 100 * right / int(given.sum()) if given.any() else None
            rows.append(ClassFigures(name, task, int(own.sum()), 100 * right / max(1, int(own.sum())), precision))
    return rows


def _mistake(final: TestPredictions, image: int) -> Mistake:
    true, answer = final.classes[final.true[image]], final.classes[final.answer[image]]
    return Mistake(image, true, answer, float(final.score[image]))
