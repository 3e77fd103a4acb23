"""Checks of what was read from a model folder: names, types and sizes, before anything is built from it.

Hashes show that a file is the one that was written, not that it makes sense: whoever alters a folder can compute them anew.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

import torch
from pydantic import BaseModel, ConfigDict, Field, InstanceOf, TypeAdapter, ValidationError
from torch import Tensor

from caprompt.calibration import GRID
from caprompt.data.class_names import check_class_name
from caprompt.errors import DataError, ModelFolderError

__all__ = ["check_classes", "check_config", "check_evaluation", "check_metrics", "check_records", "check_tensors"]

Count = Annotated[int, Field(ge=0, le=10**12)]
Text = InstanceOf[str]  # paths may have bytes that are not UTF-8, which pydantic's own strings cannot have
Name = Annotated[str, Field(min_length=1, max_length=200, pattern=r"^[^\x00-\x1f\x7f]*$")]
Hash = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
EVIDENCE_SHAPES = {"evidence.losses": GRID, "evidence.sureness": (101,)}  # of the evidence of one call
EARLIER_GRID = (71, 10)  # of models before probabilities had a curvature
PREFIXES = ("method.", "optimizer.")  # of the tensors of a state


class _Part(BaseModel):
    """A JSON object, of which only the listed keys are checked: later versions may add some."""

    model_config = ConfigDict(strict=True, extra="allow", allow_inf_nan=False)


class _Backbone(_Part):
    name: Text
    path: Text
    sha256: Hash


class _ClassOfLesson(_Part):
    images: Count
    new: bool
    sha256: Text


class _Lesson(_Part):
    kind: Text
    date: Text
    classes: dict[Text, _ClassOfLesson] = {}
    images: Count = 0
    seconds: float = 0.0
    source: Text | list[Text] = Field("", alias="from")
    to: Text = ""


class _Calibration(_Part):
    model_config = ConfigDict(extra="forbid")

    factor: float = Field(1.0, gt=0)
    background: float = Field(0.0, ge=0, lt=1)
    curvature: float = Field(0.0, ge=0, le=1000)
    images: Count = 0
    quantiles: list[Annotated[float, Field(ge=0, le=1)]] = Field([], max_length=10_000)
    masses: list[Annotated[float, Field(ge=0, le=1)]] = Field([], max_length=10_000)


class _Progress(_Part):
    epochs_done: Count
    digest: Text
    new_classes: list[Text]


class _Config(_Part):
    method: Name
    options: dict[Name, Any]
    backbone: _Backbone
    seed: int = Field(ge=0)
    task_sizes: list[Count]
    calls: Count
    caprompt: Text
    removed: list[Name] = Field([], max_length=10_000)
    lessons: list[_Lesson] = []
    calibration: _Calibration = _Calibration()
    progress: _Progress | None = None
    files: dict[Text, Text]


class _Class(_Part):
    name: Text
    task: int = Field(ge=1)
    images: Count
    type: Literal["int"] | None = None


class _Epoch(_Part):
    call: Count


class _Evaluation(_Part):
    """What is shown of `evaluation.json`."""

    date: Text
    images: Count
    accuracy: float = Field(ge=0, le=100)


_CLASSES = TypeAdapter(list[_Class])
_METRICS = TypeAdapter(list[_Epoch])


def check_config(config: Any) -> None:
    """Raise `ModelFolderError` unless `config.json` has the keys and types of a model."""
    try:
        _Config.model_validate(config)
    except ValidationError as error:
        raise ModelFolderError(_describe(error)) from error


def check_classes(entries: Any, task_sizes: Sequence[int]) -> None:
    """Raise `ModelFolderError` unless `classes.json` has a valid entry for every output of the tasks."""
    try:
        classes = _CLASSES.validate_python(entries)
    except ValidationError as error:
        raise ModelFolderError(_describe(error)) from error
    if len(classes) != sum(task_sizes):
        raise ModelFolderError(f"it has {len(classes)} classes, but the tasks have {sum(task_sizes)}")
    tasks = [task for task, size in enumerate(task_sizes, start=1) for _ in range(size)]
    for entry, task in zip(classes, tasks, strict=True):
        try:
            check_class_name(entry.name)
        except DataError as error:
            raise ModelFolderError(str(error)) from error
        if entry.task != task:
            raise ModelFolderError(f"its class {entry.name!r} is of task {entry.task}, but should be of task {task}")
        if entry.type == "int" and not _is_integer(entry.name):
            raise ModelFolderError(f"its class {entry.name!r} is not an integer")


def check_metrics(records: Any) -> None:
    """Raise `ModelFolderError` unless every line of `metrics.jsonl` is an epoch of some call."""
    try:
        _METRICS.validate_python(records)
    except ValidationError as error:
        raise ModelFolderError(_describe(error)) from error


def check_evaluation(evaluation: Any) -> None:
    """Raise `ModelFolderError` unless `evaluation.json` has the keys and types of an evaluation; an empty one stands for none."""
    try:
        if evaluation:
            _Evaluation.model_validate(evaluation)
    except ValidationError as error:
        raise ModelFolderError(_describe(error)) from error


def check_tensors(tensors: Mapping[str, Tensor], config: Mapping[str, Any]) -> None:
    """Raise `ModelFolderError` for tensors that are not of the method's state, not finite, or too few for the tasks of a model.

    The backbone is not part of a model: its own file is verified by its hash, which tensors here must not undo.
    """
    for name, tensor in tensors.items():
        if not name.startswith(PREFIXES) or name.startswith("method.vit.") or tensor.is_complex():
            raise ModelFolderError(f"its tensor {name!r} is not part of the state of a method")
        if tensor.is_floating_point() and not _is_finite(tensor):
            raise ModelFolderError(f"its tensor {name!r} has values that are not finite")
    values = sum(tensor.numel() for name, tensor in tensors.items() if name.startswith("method."))
    num_classes, num_tasks = sum(config["task_sizes"]), len(config["task_sizes"])
    if max(num_classes, num_tasks - 1000) > values:  # a method has a row per class; tasks may have lost all of their classes
        raise ModelFolderError(f"its {values} values are too few for {num_classes} classes in {num_tasks} tasks")


def _is_finite(tensor: Tensor) -> bool:
    """Return whether all values are finite: by the least and the greatest, which takes a thirtieth of the time of `isfinite`.

    >>> _is_finite(torch.ones(3)), _is_finite(torch.tensor([1.0, float("nan"), 2.0])), _is_finite(torch.ones(0))
    (True, False, True)
    """
    return tensor.numel() == 0 or all(math.isfinite(float(each)) for each in tensor.aminmax())


def check_records(records: Mapping[str, Tensor], num_outputs: int) -> None:
    """Raise `ModelFolderError` unless the records of images and of calibrations have the shapes in which they are written."""
    digests, outputs = records.get("digests"), records.get("outputs")
    if (digests is None) != (outputs is None):
        raise ModelFolderError("it has only one of 'digests' and 'outputs'")
    if digests is not None and outputs is not None:
        _check_tensor("digests", digests, (len(outputs) if outputs.ndim else 0, 8), torch.uint8)
        _check_tensor("outputs", outputs, (len(digests),), torch.int32)
        if outputs.numel() and not 0 <= int(outputs.min()) <= int(outputs.max()) < num_outputs:
            raise ModelFolderError("its 'outputs' are not outputs of the model")
    if not any(name.startswith("evidence.") for name in records):
        return
    images = records.get("evidence.images")
    if images is None or images.ndim != 1 or images.dtype != torch.int64 or (images.numel() and int(images.min()) < 1):
        raise ModelFolderError("its 'evidence.images' are not numbers of images")
    for name, shape in EVIDENCE_SHAPES.items():
        if name not in records:
            raise ModelFolderError(f"it lacks '{name}'")
        if records[name].shape[1:] != EARLIER_GRID:
            _check_tensor(name, records[name], (len(images), *shape), torch.float64)


def _check_tensor(name: str, tensor: Tensor, shape: tuple[int, ...], dtype: torch.dtype) -> None:
    if tuple(tensor.shape) != shape or tensor.dtype != dtype:
        raise ModelFolderError(f"its '{name}' is {tensor.dtype} {tuple(tensor.shape)}, not {dtype} {shape}")


def _is_integer(name: str) -> bool:
    """Return whether a name is an integer as Python prints it.

    >>> _is_integer("-3"), _is_integer("03"), _is_integer("three")
    (True, False, False)
    """
    try:
        return str(int(name)) == name
    except ValueError:
        return False


def _describe(error: ValidationError) -> str:
    """Return the first problem of a document as a part of a sentence."""
    problem = error.errors(include_url=False, include_input=False)[0]
    place = ".".join(str(part) for part in problem["loc"])[:100]
    return f"{place!r}: {problem['msg'][:1].lower()}{problem['msg'][1:]}" if place else problem["msg"]
