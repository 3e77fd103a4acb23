"""A whole class-incremental experiment: a data set is cut into tasks, learned one after another, and tested after each.

With `joint` the same tasks are learned all at once, as an upper bound: one call of `learn`, one row of results, still by task.

A run folder holds
    run.json        the plan, written first: configuration, class order, split, seed, backbone hash, versions, machine
    model/          the model after the last finished task, and its checkpoint within the current one
    metrics.jsonl   a line per epoch and per test, written while it runs (`logbook.py`)
    results.json    the accuracy matrix so far, what follows from it, and what it cost
    predictions.npz, cost.json   what the final test said of every image, and memory and parameters (`keeping.py`)
    curve.png       accuracy after each task; not of a joint run
and can be stopped at any moment and resumed to the same end. Test images are looked at after each task, never before.
"""

from __future__ import annotations

import json
import platform
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from pydantic import BaseModel, ConfigDict, Field, ValidationInfo, field_validator

from caprompt import __version__, checkpoint, metrics, protocols
from caprompt.backbones.weights import DEFAULT_BACKBONE
from caprompt.callbacks.events import Listener, TaskTested, silent, together
from caprompt.callbacks.metrics_log import LOG, Logbook, finished_epochs
from caprompt.classifier import ContinualClassifier
from caprompt.data import Dataset, Samples, load_dataset
from caprompt.data.duplicates import occurring
from caprompt.data.image_cache import ImageStore
from caprompt.data.tasks import class_order, hold_out, split_tasks
from caprompt.data.validation import verified
from caprompt.errors import DataError, InputError, ModelFolderError
from caprompt.experiments import artifacts, data_warnings
from caprompt.methods import find

__all__ = ["FORMAT", "Results", "RunConfig", "exam_images", "parts", "read_plan", "recommended", "run"]

FORMAT = 1  # of a run folder
PLANNED = {"config", "options", "backbone", "tasks", "train", "test", "protocol", "environment"}  # what every run.json has
REMEDY = "remove the folder and run it again, or read it with the version that wrote it"


class RunConfig(BaseModel):
    """What a run is made of. Options of the method stand in `options`; the data set may recommend some, the caller's win."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    dataset: str = Field("digits", description="a data set's name, or a folder or CSV of images")
    method: str = Field("caprompt", description="a method's name")
    backbone: str = Field(DEFAULT_BACKBONE, description="a backbone's name or file")
    seed: int = Field(0, ge=0, description="class order, initialisation, batches and augmentation follow from it")
    tasks: int | tuple[int, ...] | tuple[tuple[str, ...], ...] | None = Field(
        None, description="number of tasks, their sizes, or their class names"
    )
    order: Literal["shuffled", "natural"] = Field("shuffled", description="class order: by seed, or as the names sort")
    validation: float = Field(0.0, ge=0, lt=1, description="test on this share of the training images instead of the test images")
    give_task: bool = Field(
        False, description="tell the method each test image's true task (the paper's appendix); not a fair test"
    )
    per_class: int | None = Field(
        None, ge=1, description="use at most this many training images of each class, and as many test images; for quick trials"
    )
    joint: bool = Field(False, description="learn all classes at once, the upper bound; test by the tasks they would have come in")
    options: Mapping[str, Any] = Field(default_factory=dict, description="options of the method")

    @field_validator("joint")
    @classmethod
    def gives_no_task(cls, value: bool, info: ValidationInfo) -> bool:
        """Classes that are learned at once are one task, so there is none to give away."""
        if value and info.data.get("give_task"):
            raise ValueError("there is no task to give away (give_task) where all classes are one")
        return value


@dataclass(frozen=True)
class TaskResult:
    """What the test said after one task, in percent, and what learning it cost."""

    accuracies: tuple[float, ...]  # on the classes of each task so far: a row of the accuracy matrix
    images: tuple[int, ...]  # test images behind each
    task_identification: float
    mean_passes: float
    seconds: float  # spent in training epochs, whatever was repeated after a stop


@dataclass(frozen=True)
class Results:
    """A run's accuracy matrix, row by row, and what follows from it."""

    folder: Path
    tasks: Sequence[Sequence[str]]
    rows: Sequence[TaskResult]
    protocol: str = protocols.HONEST
    joint: bool = False  # all tasks were learned at once: there is one row, with every task in it

    @property
    def matrix(self) -> list[tuple[float, ...]]:
        """`matrix[i][j]`: accuracy on task j after learning task i."""
        return [row.accuracies for row in self.rows]

    @property
    def finished(self) -> bool:
        """Have all tasks been learned and tested?"""
        return len(self.rows) == (1 if self.joint else len(self.tasks))

    def summary(self) -> dict[str, float]:
        """The usual figures, in percent."""
        last = self.rows[-1]
        return {
            "ACC": metrics.average_accuracy(self.matrix),
            "AF": metrics.forgetting(self.matrix),
            "learning_accuracy": metrics.learning_accuracy(self.matrix),
            "pooled": metrics.pooled_accuracy(last.accuracies, last.images),
            "average_incremental_accuracy": metrics.average_incremental_accuracy(self.matrix),
            "backward_transfer": metrics.backward_transfer(self.matrix),
            "task_identification": last.task_identification,
        }

    def save(self) -> None:
        """Write `results.json`, atomically."""
        document = {
            "protocol": self.protocol,
            "tasks": self.tasks,
            "finished": self.finished,
            "rows": [asdict(row) for row in self.rows],
        }
        checkpoint.write_json(self.folder / "results.json", {**document, "summary": self.summary()})

    @classmethod
    def load(cls, folder: Path) -> Results:
        """Read what a run has found so far."""
        plan = read_plan(folder)
        path = folder / "results.json"
        try:
            rows = json.loads(path.read_text(encoding="utf-8"))["rows"] if path.is_file() else []
            results = [
                TaskResult(**{**row, "accuracies": tuple(row["accuracies"]), "images": tuple(row["images"])}) for row in rows
            ]
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise ModelFolderError(f"'{path}' is half-written or of another version of caprompt; {REMEDY}") from error
        return cls(folder, plan["tasks"], results, plan["protocol"], plan["config"].get("joint", False))


def run(
    config: RunConfig,
    folder: Path,
    *,
    resume: bool = False,
    skip_bad: bool = False,
    device: str = "auto",
    listen: Listener = silent,
) -> Results:
    """Run an experiment in its folder, or go on with it there. Everything is checked before anything is written."""
    data = load_dataset(config.dataset)
    train, test = readable_parts(data, config, skip_bad)
    options = {**recommended(data.options, config.method), **config.options}
    tasks = planned_tasks(config, data)
    model = ContinualClassifier(config.method, config.backbone, seed=config.seed, device=device, **options)
    plan = make_plan(config, model, tasks, train, test)
    if resume and (folder / "run.json").is_file():
        check_same_plan(folder, plan)
    elif folder.exists() and not is_vacant(folder):
        raise InputError(f"'{folder}' is not empty; choose another folder, or go on with the run there with --resume")
    else:
        checkpoint.write_json(folder / "run.json", plan)

    artifacts.begin(model.device)
    results = Results.load(folder)
    listen = together(Logbook(folder / LOG, finished_epochs(folder / "model"), results.matrix), listen)
    portions = [[name for names in tasks for name in names]] if config.joint else tasks
    if checkpoint.exists(folder / "model"):
        model = ContinualClassifier.load(folder / "model", device=device)
    while not results.finished:
        done = len(results.rows)
        if len(model.tasks) == done:
            model.learn(train.of_classes(portions[done]), folder=folder / "model", resume=resume, listen=listen)
        seen = test.of_classes(model.classes)
        row = assess(model, seen, config.give_task, tasks if config.joint else None)
        results = replace(results, rows=[*results.rows, row])
        if results.finished:
            artifacts.keep(folder, model, seen, config.give_task)
        results.save()
        listen(TaskTested(results.matrix))
    if not config.joint:
        from caprompt.experiments.plots import accuracy_curve

        title = "" if results.protocol == protocols.HONEST else protocols.in_percent("accuracy after each task", results.protocol)
        accuracy_curve({config.method: [results.matrix]}, folder / "curve.png", title)
    return results


def readable_parts(data: Dataset, config: RunConfig, skip_bad: bool) -> tuple[Samples, Samples]:
    """Training and test images (or validation images in their place), every one of them decoded once."""
    train, test = parts(data, config)
    untested = [name for name in train.classes if name not in test.classes]
    if untested:
        raise DataError(f"class '{untested[0]}' has no image to spare for the validation; give every class two or more")
    look = ImageStore(budget_bytes=0)
    return verified(train, look, skip_bad), verified(test, look, skip_bad)


def parts(data: Dataset, config: RunConfig) -> tuple[Samples, Samples]:
    """Training images, and those that a run with this configuration is tested on, as they lie there."""
    train, test = (data.train, data.test) if not config.validation else hold_out(data.train, config.validation, config.seed)
    if config.per_class is None:
        return train, test
    return train.first_of_each(config.per_class), test.first_of_each(config.per_class)


def exam_images(config: RunConfig) -> Samples:
    """What a run with this configuration is tested on."""
    return parts(load_dataset(config.dataset), config)[1]


def is_vacant(folder: Path) -> bool:
    """Is this a folder with nothing in it but what a kill may have left of a first write?"""
    return folder.is_dir() and all(path.name == ".run.json.next" for path in folder.iterdir())


def assess(model: ContinualClassifier, seen: Samples, give_task: bool, tasks: Sequence[Sequence[str]] | None = None) -> TaskResult:
    """One row of the matrix: test on the classes seen so far, by the tasks they were learned in or by others."""
    found = model.evaluate(seen, give_task=give_task, tasks=tasks)
    seconds = sum(record["seconds"] for record in model.history if record["call"] == model.calls - 1)
    return TaskResult(
        accuracies=tuple(score.accuracy for score in found.tasks),
        images=tuple(score.images for score in found.tasks),
        task_identification=found.task_identification,
        mean_passes=found.mean_passes,
        seconds=round(seconds, 3),
    )


def recommended(options: Mapping[str, Any], method: str) -> dict[str, Any]:
    """Those of a data set's recommended options that this method has."""
    known = find(method).options_class.model_fields
    return {name: value for name, value in options.items() if name in known}


def planned_tasks(config: RunConfig, data: Dataset) -> list[list[str]]:
    """The classes of each task. Lists of names are an order of their own."""
    tasks = config.tasks if config.tasks is not None else data.tasks
    return split_tasks(class_order(data.train.classes, config.order, config.seed), tasks)


def make_plan(
    config: RunConfig, model: ContinualClassifier, tasks: Sequence[Sequence[str]], train: Samples, test: Samples
) -> dict[str, Any]:
    """Everything that says what this run is; a resumed run must have the same."""
    return {
        "format": FORMAT,
        "config": config.model_dump(mode="json"),
        "options": model.method.options.model_dump(mode="json"),
        "backbone": model.backbone.described(),
        "tasks": [list(names) for names in tasks],
        "train": {"images": len(train), "sha256": train.digest()},
        "test": {
            "images": len(test),
            "sha256": test.digest(),
            "from": "training images" if config.validation else "test images",
        },
        "skipped": [*train.skipped, *test.skipped],
        **concerns(config, model, train, test),
        "protocol": protocols.protocol(model.method.options, config.give_task, config.joint),
        "environment": environment(model.device),
    }


def concerns(config: RunConfig, model: ContinualClassifier, train: Samples, test: Samples) -> dict[str, Any]:
    """What a reader of the figures should know of data and backbone; resuming does not depend on it."""
    repeated = len(occurring(test, train))
    warnings = [data_warnings.repeated_images(repeated, len(test)), data_warnings.labels_seen(model.backbone.name, config.dataset)]
    return {"test_images_in_training": repeated, "warnings": [warning for warning in warnings if warning]}


def environment(device: torch.device) -> dict[str, Any]:
    """Versions and machine."""
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else platform.processor() or platform.machine()
    versions = {
        "caprompt": __version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": np.__version__,
    }
    return {**versions, "device": f"{device.type}: {name}", "threads": torch.get_num_threads()}


def read_plan(folder: Path) -> dict[str, Any]:
    """The plan of a run folder."""
    try:
        plan: dict[str, Any] = json.loads((folder / "run.json").read_text(encoding="utf-8"))
    except OSError as error:
        raise ModelFolderError(f"'{folder}' does not hold a run (run.json cannot be read)") from error
    except ValueError as error:
        raise ModelFolderError(f"'{folder}' does not hold a run: run.json is half-written; {REMEDY}") from error
    version = plan.get("format", 1) if isinstance(plan, dict) else None  # the first runs did not say
    if not isinstance(version, int):
        raise ModelFolderError(f"'{folder}' does not hold a run: its run.json is something else; {REMEDY}")
    if version > FORMAT:
        raise ModelFolderError(
            f"the run in '{folder}' was written by a newer caprompt (format {version}, this one reads up to {FORMAT}); upgrade it"
        )
    if not plan.keys() >= PLANNED:
        raise ModelFolderError(f"the run in '{folder}' was written by another version of caprompt; {REMEDY}")
    return plan


def check_same_plan(folder: Path, plan: Mapping[str, Any]) -> None:
    """A run can only be resumed as what it was; versions and machine may differ."""
    before = read_plan(folder)
    for part in ("config", "options", "backbone", "tasks", "train", "test"):
        if json.loads(json.dumps(plan[part])) != before[part]:
            raise InputError(f"the run in '{folder}' was started with other settings ({part} differs); resume it with the same")
