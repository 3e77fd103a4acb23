"""The audit: does an image's answer depend on its company?

Public code in this field lets the images of a test batch influence each other; a test that walks through the classes in order then
leaks which task an image belongs to. The audit predicts the same images one by one, in batches of several sizes, sorted by class
and by task, and shuffled, and counts the answers that change. For an honest model none does, ties to rounding apart.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from caprompt import checkpoint, metrics
from caprompt.classifier import ContinualClassifier
from caprompt.data import Samples, load_dataset, read_source
from caprompt.data.datasets.registry import DATASETS
from caprompt.data.duplicates import find_duplicates
from caprompt.data.sources import Source
from caprompt.engine.inputs import InputPipeline
from caprompt.errors import InputError
from caprompt.experiments import data_warnings
from caprompt.experiments.run_folder import RunResult, read_plan
from caprompt.protocols import HONEST, protocol, single
from caprompt.utils import files

__all__ = [
    "AUDIT",
    "Arrangement",
    "Audit",
    "audit",
    "find_data_warnings",
    "joint_warning",
    "load_audit_images",
    "read_joint_summary",
    "save_with_run",
]

ROUNDING = 1e-4  # of a probability: a change of label within this is a tie, not a dependence
BATCH = 64

AUDIT = "audit.json"


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
    feeder = InputPipeline(model.backbone, model.device)
    samples, targets = model.labelled(source, feeder, skip_bad)
    task_of_class = model.method.task_of_class.tolist()
    with model.with_options({"precision": "fp32"}):
        alone = probabilities(model, feeder, samples, range(len(samples)), batch_size=1)
        found = [Arrangement("one by one", *accuracies(alone, targets, task_of_class), 0, 0.0)]
        for name, order, size in arrangements(targets, task_of_class, seed):
            together = probabilities(model, feeder, samples, order, size)
            difference = float((together - alone).abs().max())
            found.append(
                Arrangement(name, *accuracies(together, targets, task_of_class), count_changed(alone, together), difference)
            )
    return Audit(len(samples), tuple(found), protocol(model.method.options), samples.skipped)


def arrangements(targets: Sequence[int], task_of_class: Sequence[int], seed: int) -> Iterator[tuple[str, Sequence[int], int]]:
    """Name, order and batch size of each way to present the images."""
    given = range(len(targets))
    yield "as given, batches of 7", given, 7
    yield f"as given, batches of {BATCH}", given, BATCH
    yield f"sorted by class, batches of {BATCH}", sorted(given, key=lambda i: targets[i]), BATCH
    yield f"sorted by task, batches of {BATCH}", sorted(given, key=lambda i: task_of_class[targets[i]]), BATCH
    yield f"shuffled, batches of {BATCH}", np.random.default_rng(seed).permutation(len(targets)).tolist(), BATCH


def probabilities(
    model: ContinualClassifier, feeder: InputPipeline, samples: Samples, order: Sequence[int], batch_size: int
) -> Tensor:
    """Class probabilities (N, C) of the images shown in this order, put back into their own."""
    shown = feeder.plain(samples.select(order), [0] * len(samples), model.method.options, batch_size)
    rows = torch.cat([model.method.predict(images).logits.softmax(dim=1).cpu() for images, _ in shown])
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
    each = [metrics.percent_correct(*zip(*pairs, strict=True)) for pairs in by_task.values() if pairs]
    return metrics.percent_correct(*zip(*answers, strict=True)), metrics.average_accuracy([each])


def count_changed(alone: Tensor, together: Tensor) -> int:
    """How many answers differ, ties to rounding apart.

    >>> alone = torch.tensor([[0.6, 0.4], [0.50001, 0.49999], [0.3, 0.7]])
    >>> count_changed(alone, torch.tensor([[0.4, 0.6], [0.49999, 0.50001], [0.3, 0.7]]))
    1
    """
    before, after = alone.argmax(dim=1), together.argmax(dim=1)
    lead = alone.gather(1, before[:, None]) - alone.gather(1, after[:, None])  # by how much the lost answer led
    return int(((before != after) & (lead.squeeze(1) > ROUNDING)).sum())


def load_audit_images(source: str, train: str | None) -> tuple[Samples, Samples | None]:
    """The images to test with, and those to look for them among, if they are known."""
    if source in DATASETS:
        data = load_dataset(source)
        return data.test, read_source(train) if train else data.train
    return read_source(source), read_source(train) if train else None


def find_data_warnings(
    model: ContinualClassifier, folder: Path, source: str, test: Samples, trained_on: Samples | None
) -> list[str | None]:
    """What the images and the backbone's past say about the figures."""
    dataset = source if source in DATASETS else find_run_dataset(folder)
    repeated = len(find_duplicates(test, trained_on)) if trained_on else 0
    return [data_warnings.duplicate_warning(repeated, len(test)), data_warnings.pretraining_warning(model.backbone.name, dataset)]


def find_run_dataset(folder: Path) -> str:
    """The data set that a run, whose model this is, was on; "" for a model that stands for itself."""
    try:
        return str(json.loads((folder.resolve().parent / "run.json").read_text(encoding="utf-8"))["config"]["dataset"])
    except (OSError, ValueError, KeyError, TypeError):
        return ""


def save_with_run(model: Path, document: dict[str, Any]) -> None:
    """Write the audit of a run's model into the run's folder, with the hash of what was audited: a report shows it."""
    home = model.resolve().parent
    if (home / "run.json").is_file():
        state = checkpoint.read_config(model)["files"][checkpoint.STATE]
        files.write_json(home / AUDIT, {**document, "state": state})


def read_joint_summary(place: Path, model: ContinualClassifier) -> dict[str, float]:
    """What a joint run reached; one of another method, backbone, protocol or other classes is refused."""
    folder = place.parent if place.is_file() else place
    try:
        plan, results = read_plan(folder), RunResult.load(folder)
        theirs = plan["config"]["method"], plan["backbone"]["sha256"], sorted(name for task in results.tasks for name in task)
    except (KeyError, TypeError) as error:
        raise InputError(f"'{place}' does not hold a run that can be compared with") from error
    if len(results.tasks) != 1 or not results.finished:
        raise InputError(f"the run in '{place}' is no finished joint training; give one that learned all classes in one task")
    ours = model.method.name, model.backbone.sha256, sorted(model.classes)
    for what, one, other in zip(("method", "backbone", "set of classes"), theirs, ours, strict=True):
        if one != other:
            raise InputError(f"the joint run in '{place}' cannot be compared with this model: it has another {what}")
    single([results.protocol, protocol(model.method.options)])
    return results.summary()


def joint_warning(found: Audit, joint: dict[str, float], place: str) -> str | None:
    """What to say where a model does better, in whatever arrangement, than the same method with all classes at once."""
    best = max(found.arrangements, key=lambda each: each.average_accuracy)
    pooled = max(each.accuracy for each in found.arrangements)
    if best.average_accuracy <= joint["ACC"] and pooled <= joint["pooled"]:
        return None
    return (
        f"ACC {best.average_accuracy:.2f} and accuracy {pooled:.2f} against {joint['ACC']:.2f} and {joint['pooled']:.2f} of joint "
        f"training in '{place}': learning piece by piece should not do better ({best.name})"
    )
