"""The audit: does a prediction depend on batch composition?

Public code in this field lets the images of a test batch influence each other; a test that goes through the classes in order
then leaks which task an image belongs to. The audit predicts the same images one by one, in batches of several sizes, sorted by
class and by task, and shuffled, and counts the predictions that change. For an honest model none does, apart from ties within
rounding.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
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
from caprompt.engine.inference import predict_samples
from caprompt.engine.inputs import InputPipeline
from caprompt.errors import InputError
from caprompt.experiments import data_warnings
from caprompt.experiments.run_folder import RunResult, read_plan
from caprompt.protocols import HONEST, describe_protocol, require_same_protocol
from caprompt.utils import files

__all__ = [
    "AUDIT",
    "Arrangement",
    "Audit",
    "audit",
    "count_changed",
    "find_data_warnings",
    "list_arrangements",
    "load_audit_images",
    "make_joint_warning",
    "read_joint_summary",
    "save_with_run",
]

ROUNDING = 1e-4  # of a probability: labels whose probabilities are this close are a tie
BATCH_SIZE = 64

AUDIT = "audit.json"


@dataclass(frozen=True)
class Arrangement:
    """One order and batch size, compared with one image at a time."""

    name: str
    accuracy: float  # over all images, in percent
    average_accuracy: float  # mean over tasks (ACC)
    changed: int  # predictions that differ by more than rounding
    largest_difference: float  # of any class probability


@dataclass(frozen=True)
class Audit:
    """How batch composition changes the predictions."""

    images: int
    arrangements: tuple[Arrangement, ...]  # the first is one by one
    protocol: str = HONEST
    skipped: tuple[str, ...] = ()  # a sentence about each image that could not be read

    @property
    def clean(self) -> bool:
        """Whether no prediction changed."""
        return not any(arrangement.changed for arrangement in self.arrangements)

    def as_dict(self) -> dict[str, Any]:
        """Return a dictionary for JSON."""
        return {**asdict(self), "clean": self.clean}

    @classmethod
    def from_dict(cls, document: Mapping[str, Any]) -> Audit:
        """Rebuild an audit from `as_dict()`; keys that it does not know are ignored."""
        names = [field.name for field in fields(Arrangement)]
        arrangements = tuple(Arrangement(**{name: each[name] for name in names}) for each in document["arrangements"])
        return cls(document["images"], arrangements, document.get("protocol", HONEST), tuple(document.get("skipped", ())))

    def tabulate(self) -> tuple[list[str], list[list[str]]]:
        """Return column headings and rows for display, one row per arrangement."""
        headings = ["arrangement", "accuracy", "ACC", "changed predictions", "largest difference"]
        rows = [
            [each.name, f"{each.accuracy:.2f}", f"{each.average_accuracy:.2f}", str(each.changed), f"{each.largest_difference:.1e}"]
            for each in self.arrangements
        ]
        return headings, rows


def audit(model: ContinualClassifier, source: Source, *, seed: int = 0, skip_bad: bool = False) -> Audit:
    """Predict labeled images in several arrangements and compare each with one image at a time.

    Everything is computed in float32, so that a change is the method's doing and not the rounding of half precision.
    """
    pipeline = InputPipeline(model.backbone, model.device)
    samples, targets = model.read_labeled(source, pipeline, skip_bad)
    task_of_class = model.method.task_of_class.tolist()
    with model.override_options({"precision": "fp32"}):
        alone = _predict_probabilities(model, pipeline, samples, range(len(samples)), batch_size=1)
        results = [Arrangement("one by one", *_accuracies(alone, targets, task_of_class), 0, 0.0)]
        for name, order, size in list_arrangements(targets, task_of_class, seed):
            batched = _predict_probabilities(model, pipeline, samples, order, size)
            changed, difference = count_changed(alone, batched), float((batched - alone).abs().max())
            results.append(Arrangement(name, *_accuracies(batched, targets, task_of_class), changed, difference))
    return Audit(len(samples), tuple(results), describe_protocol(model.method.options), samples.skipped)


def list_arrangements(targets: Sequence[int], task_of_class: Sequence[int], seed: int) -> Iterator[tuple[str, Sequence[int], int]]:
    """Yield the name, order and batch size of each arrangement."""
    in_order = range(len(targets))
    yield "as given, batches of 7", in_order, 7
    yield f"as given, batches of {BATCH_SIZE}", in_order, BATCH_SIZE
    yield f"sorted by class, batches of {BATCH_SIZE}", sorted(in_order, key=lambda i: targets[i]), BATCH_SIZE
    yield f"sorted by task, batches of {BATCH_SIZE}", sorted(in_order, key=lambda i: task_of_class[targets[i]]), BATCH_SIZE
    yield f"shuffled, batches of {BATCH_SIZE}", np.random.default_rng(seed).permutation(len(targets)).tolist(), BATCH_SIZE


def _predict_probabilities(
    model: ContinualClassifier, pipeline: InputPipeline, samples: Samples, order: Sequence[int], batch_size: int
) -> Tensor:
    """Return class probabilities (N, C) of images that are predicted in this order, in the order of the samples."""
    output = predict_samples(model.method.predict, pipeline, samples.select(order), model.method.input_options, batch_size)
    probabilities = output.logits.softmax(dim=1).cpu()
    restored = torch.empty_like(probabilities)
    restored[torch.tensor(list(order))] = probabilities
    return restored


def _accuracies(probabilities: Tensor, targets: Sequence[int], task_of_class: Sequence[int]) -> tuple[float, float]:
    """Return the accuracy over all images and the mean accuracy over tasks, in percent.

    >>> _accuracies(torch.tensor([[0.9, 0.1], [0.8, 0.2], [0.7, 0.3], [0.6, 0.4]]), [0, 0, 0, 1], [0, 1])
    (75.0, 50.0)
    """
    pairs = list(zip(probabilities.argmax(dim=1).tolist(), targets, strict=True))
    by_task = {task: [pair for pair in pairs if task_of_class[pair[1]] == task] for task in sorted(set(task_of_class))}
    per_task = [metrics.percent_correct(*zip(*members, strict=True)) for members in by_task.values() if members]
    return metrics.percent_correct(*zip(*pairs, strict=True)), metrics.average_accuracy([per_task])


def count_changed(alone: Tensor, batched: Tensor) -> int:
    """Return how many predictions differ, apart from ties within rounding.

    >>> alone = torch.tensor([[0.6, 0.4], [0.50001, 0.49999], [0.3, 0.7]])
    >>> count_changed(alone, torch.tensor([[0.4, 0.6], [0.49999, 0.50001], [0.3, 0.7]]))
    1
    """
    before, after = alone.argmax(dim=1), batched.argmax(dim=1)
    margin = alone.gather(1, before[:, None]) - alone.gather(1, after[:, None])  # by which the lost prediction led
    return int(((before != after) & (margin.squeeze(1) > ROUNDING)).sum())


def load_audit_images(source: str, train: str | None) -> tuple[Samples, Samples | None]:
    """Return the images to test with, and the training images to look for them among, if these are known."""
    if source in DATASETS:
        data = load_dataset(source)
        return data.test, read_source(train) if train else data.train
    return read_source(source), read_source(train) if train else None


def find_data_warnings(
    model: ContinualClassifier, folder: Path, source: str, test: Samples, trained_on: Samples | None
) -> list[str | None]:
    """Return warnings about test images that were trained on, and labels that the backbone was pre-trained with."""
    dataset = source if source in DATASETS else _find_run_dataset(folder)
    repeated = len(find_duplicates(test, trained_on)) if trained_on else 0
    return [
        data_warnings.make_duplicate_warning(repeated, len(test)),
        data_warnings.make_pretraining_warning(model.backbone.name, dataset),
    ]


def _find_run_dataset(folder: Path) -> str:
    """Return the dataset of the run that a model folder belongs to; "" for a model that belongs to none."""
    try:
        return str(json.loads((folder.resolve().parent / "run.json").read_text(encoding="utf-8"))["config"]["dataset"])
    except (OSError, ValueError, KeyError, TypeError):
        return ""


def save_with_run(model: Path, document: dict[str, Any]) -> None:
    """Write the audit of a run's model into the run's folder, with the hash of the audited state, for reports."""
    run_folder = model.resolve().parent
    if (run_folder / "run.json").is_file():
        state = checkpoint.read_config(model)["files"][checkpoint.STATE]
        files.write_json(run_folder / AUDIT, {**document, "state": state})


def read_joint_summary(path: Path, model: ContinualClassifier) -> dict[str, float]:
    """Return the metrics of a joint run; one of another method, backbone, protocol or other classes is refused."""
    folder = path.parent if path.is_file() else path
    try:
        plan, results = read_plan(folder), RunResult.load(folder)
        theirs = plan["config"]["method"], plan["backbone"]["sha256"], sorted(name for task in results.tasks for name in task)
    except (KeyError, TypeError) as error:
        raise InputError(f"'{path}' does not hold a run that can be compared with") from error
    if len(results.tasks) != 1 or not results.finished:
        raise InputError(f"the run in '{path}' is not a finished joint training; pass one that learned all classes in one task")
    ours = model.method.name, model.backbone.sha256, sorted(model.classes)
    for what, one, other in zip(("method", "backbone", "set of classes"), theirs, ours, strict=True):
        if one != other:
            raise InputError(f"the joint run in '{path}' cannot be compared with this model: it has another {what}")
    require_same_protocol([results.protocol, describe_protocol(model.method.options)])
    return results.summary()


def make_joint_warning(result: Audit, joint: dict[str, float], path: str) -> str | None:
    """Return a warning if a model does better, in any arrangement, than the same method with all classes at once."""
    best = max(result.arrangements, key=lambda each: each.average_accuracy)
    pooled = max(each.accuracy for each in result.arrangements)
    if best.average_accuracy <= joint["ACC"] and pooled <= joint["pooled"]:
        return None
    return (
        f"ACC {best.average_accuracy:.2f} and accuracy {pooled:.2f} against {joint['ACC']:.2f} and {joint['pooled']:.2f} of joint "
        f"training in '{path}': class-incremental learning should not do better ({best.name})"
    )
