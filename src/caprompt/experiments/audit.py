"""The audit: does an image's answer depend on its company?

Public code in this field lets the images of a test batch influence each other; a test that walks through the classes in order then
leaks which task an image belongs to. The audit predicts the same images one by one, in batches of several sizes, sorted by class
and by task, and shuffled, and counts the answers that change. For an honest model none does, ties to rounding apart.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from caprompt import metrics
from caprompt.classifier import ContinualClassifier
from caprompt.data import Samples
from caprompt.data.sources import Source
from caprompt.engine.inputs import Feeder
from caprompt.protocols import HONEST, protocol

__all__ = ["Arrangement", "Audit", "audit"]

ROUNDING = 1e-4  # of a probability: a change of label within this is a tie, not a dependence
BATCH = 64


@dataclass(frozen=True)
class Arrangement:
    """One way of presenting the images, against one by one."""

    name: str
    accuracy: float  # over all images, in percent
    average_accuracy: float  # mean over tasks (ACC)
    changed: int  # answers that differ beyond rounding
    largest_difference: float  # of any class probability


@dataclass(frozen=True)
class Audit:
    """What company does to the answers."""

    images: int
    arrangements: tuple[Arrangement, ...]  # the first is one by one
    protocol: str = HONEST
    skipped: tuple[str, ...] = ()  # a sentence about each image that could not be read

    @property
    def clean(self) -> bool:
        """Did every image keep its answer?"""
        return not any(arrangement.changed for arrangement in self.arrangements)

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {**asdict(self), "clean": self.clean}


def audit(model: ContinualClassifier, source: Source, *, seed: int = 0, skip_bad: bool = False) -> Audit:
    """Predict labelled images in several arrangements and compare each with one by one.

    In float32 wherever the model is, so that what is found is the method's doing and not the rounding of half precision.
    """
    feeder = Feeder(model.backbone, model.device)
    samples, targets = model.labelled(source, feeder, skip_bad)
    task_of_class = model.method.task_of_class.tolist()
    with model.with_options({"precision": "fp32"}):
        alone = probabilities(model, feeder, samples, range(len(samples)), batch_size=1)
        found = [Arrangement("one by one", *accuracies(alone, targets, task_of_class), 0, 0.0)]
        for name, order, size in arrangements(targets, task_of_class, seed):
            together = probabilities(model, feeder, samples, order, size)
            difference = float((together - alone).abs().max())
            found.append(Arrangement(name, *accuracies(together, targets, task_of_class), changed(alone, together), difference))
    return Audit(len(samples), tuple(found), protocol(model.method.options), samples.skipped)


def arrangements(targets: Sequence[int], task_of_class: Sequence[int], seed: int) -> Iterator[tuple[str, Sequence[int], int]]:
    """Name, order and batch size of each way to present the images."""
    given = range(len(targets))
    yield "as given, batches of 7", given, 7
    yield f"as given, batches of {BATCH}", given, BATCH
    yield f"sorted by class, batches of {BATCH}", sorted(given, key=lambda i: targets[i]), BATCH
    yield f"sorted by task, batches of {BATCH}", sorted(given, key=lambda i: task_of_class[targets[i]]), BATCH
    yield f"shuffled, batches of {BATCH}", np.random.default_rng(seed).permutation(len(targets)).tolist(), BATCH


def probabilities(model: ContinualClassifier, feeder: Feeder, samples: Samples, order: Sequence[int], batch_size: int) -> Tensor:
    """Class probabilities (N, C) of the images shown in this order, put back into their own."""
    shown = feeder.plain(samples.select(order), [0] * len(samples), model.method.options, batch_size)
    rows = torch.cat([model.method.answer(images).logits.softmax(dim=1).cpu() for images, _ in shown])
    own_order = torch.empty_like(rows)
    own_order[torch.tensor(list(order))] = rows
    return own_order


def accuracies(rows: Tensor, targets: Sequence[int], task_of_class: Sequence[int]) -> tuple[float, float]:
    """Percent right over all images, and the mean of that over tasks.

    >>> accuracies(torch.tensor([[0.9, 0.1], [0.8, 0.2], [0.7, 0.3], [0.6, 0.4]]), [0, 0, 0, 1], [0, 1])
    (75.0, 50.0)
    """
    answers = list(zip(rows.argmax(dim=1).tolist(), targets, strict=True))
    by_task = {task: [pair for pair in answers if task_of_class[pair[1]] == task] for task in sorted(set(task_of_class))}
    each = [metrics.percent_right(*zip(*pairs, strict=True)) for pairs in by_task.values() if pairs]
    return metrics.percent_right(*zip(*answers, strict=True)), metrics.average_accuracy([each])


def changed(alone: Tensor, together: Tensor) -> int:
    """How many answers differ, ties to rounding apart.

    >>> alone = torch.tensor([[0.6, 0.4], [0.50001, 0.49999], [0.3, 0.7]])
    >>> changed(alone, torch.tensor([[0.4, 0.6], [0.49999, 0.50001], [0.3, 0.7]]))
    1
    """
    before, after = alone.argmax(dim=1), together.argmax(dim=1)
    lead = alone.gather(1, before[:, None]) - alone.gather(1, after[:, None])  # by how much the lost answer led
    return int(((before != after) & (lead.squeeze(1) > ROUNDING)).sum())
