"""The confusion matrix of a report: all classes, or those with the most mistakes where they are many."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from caprompt.experiments.artifacts import FinalPredictions
from caprompt.metrics import count_confusions

__all__ = ["ConfusionRow", "ConfusionTable", "make_confusion_table"]

MAX_CLASSES = 20  # more columns do not fit a page


@dataclass(frozen=True)
class ConfusionRow:
    """The images of one class, by predicted class."""

    name: str
    images: int
    counts: Sequence[int]
    others: int  # predicted as classes without a column

    def share(self, count: int) -> float:
        """Return which part of the images of the class a count is, in percent."""
        return 100 * count / max(1, self.images)


@dataclass(frozen=True)
class ConfusionTable:
    """A confusion matrix, with its classes in the order of learning."""

    classes: Sequence[str]
    rows: Sequence[ConfusionRow]
    num_classes: int  # of the model

    @property
    def is_cut(self) -> bool:
        """Whether classes were left out."""
        return len(self.classes) < self.num_classes


def make_confusion_table(predictions: FinalPredictions, tasks: Sequence[Sequence[str]]) -> ConfusionTable:
    """Make the confusion matrix of the classes with the most mistakes, of their images or as predictions."""
    names = [predictions.classes[label] for label in predictions.true.tolist()]
    answers = [predictions.classes[label] for label in predictions.answer.tolist()]
    matrix = count_confusions(answers, names)
    mistakes: Counter[str] = Counter()
    for name, row in matrix.items():
        for answer, count in row.items():
            if answer != name:
                mistakes[name] += count
                mistakes[answer] += count
    learned = [name for task in tasks for name in task]
    shown = set(sorted(learned, key=lambda name: -mistakes[name])[:MAX_CLASSES])
    classes = [name for name in learned if name in shown]
    rows = []
    for name in classes:
        row = matrix.get(name, {})
        counts = [row.get(answer, 0) for answer in classes]
        images = sum(row.values())
        rows.append(ConfusionRow(name, images, counts, images - sum(counts)))
    return ConfusionTable(classes, rows, len(learned))
