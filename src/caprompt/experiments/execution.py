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

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from caprompt import checkpoint, protocols
from caprompt.callbacks.events import Callback, TaskEvaluated, compose, ignore_event
from caprompt.callbacks.metrics_log import LOG, MetricsLog
from caprompt.classifier import ContinualClassifier
from caprompt.data import Dataset, Samples, load_dataset
from caprompt.data.duplicates import find_duplicates
from caprompt.data.image_cache import ImageCache
from caprompt.data.tasks import class_order, hold_out, split_tasks
from caprompt.data.validation import validate_images
from caprompt.errors import DataError, InputError
from caprompt.experiments import artifacts, data_warnings
from caprompt.experiments.config import RunConfig, recommended_options
from caprompt.experiments.run_folder import (
    FORMAT,
    RunResult,
    TaskResult,
    check_same_plan,
    environment,
    finished_epochs,
    is_empty_folder,
)
from caprompt.utils import files

__all__ = ["load_test_images", "run_experiment", "split_data"]


def run_experiment(
    config: RunConfig,
    folder: Path,
    *,
    resume: bool = False,
    skip_bad: bool = False,
    device: str = "auto",
    listen: Callback = ignore_event,
) -> RunResult:
    """Run an experiment in its folder, or go on with it there. Everything is checked before anything is written."""
    data = load_dataset(config.dataset)
    train, test = load_splits(data, config, skip_bad)
    options = {**recommended_options(data.options, config.method), **config.options}
    tasks = plan_tasks(config, data)
    model = ContinualClassifier(config.method, config.backbone, seed=config.seed, device=device, **options)
    plan = make_plan(config, model, tasks, train, test)
    if resume and (folder / "run.json").is_file():
        check_same_plan(folder, plan)
    elif folder.exists() and not is_empty_folder(folder):
        raise InputError(f"'{folder}' is not empty; choose another folder, or go on with the run there with --resume")
    else:
        files.write_json(folder / "run.json", plan)

    artifacts.reset_peak_memory(model.device)
    results = RunResult.load(folder)
    listen = compose(MetricsLog(folder / LOG, finished_epochs(folder / "model"), results.matrix), listen)
    portions = [[name for names in tasks for name in names]] if config.joint else tasks
    if checkpoint.exists(folder / "model"):
        model = ContinualClassifier.load(folder / "model", device=device)
    while not results.finished:
        done = len(results.rows)
        if len(model.tasks) == done:
            model.learn(train.of_classes(portions[done]), folder=folder / "model", resume=resume, listen=listen)
        seen = test.of_classes(model.classes)
        row = evaluate_after_task(model, seen, config.give_task, tasks if config.joint else None)
        results = replace(results, rows=[*results.rows, row])
        if results.finished:
            artifacts.save_artifacts(folder, model, seen, config.give_task)
        results.save()
        listen(TaskEvaluated(results.matrix))
    if not config.joint:
        from caprompt.experiments.plots import accuracy_curve

        title = (
            "" if results.protocol == protocols.HONEST else protocols.percent_title("accuracy after each task", results.protocol)
        )
        accuracy_curve({config.method: [results.matrix]}, folder / "curve.png", title)
    return results


def load_splits(data: Dataset, config: RunConfig, skip_bad: bool) -> tuple[Samples, Samples]:
    """Training and test images (or validation images in their place), every one of them decoded once."""
    train, test = split_data(data, config)
    untested = [name for name in train.classes if name not in test.classes]
    if untested:
        raise DataError(f"class '{untested[0]}' has no image to spare for the validation; give every class two or more")
    look = ImageCache(budget_bytes=0)
    return validate_images(train, look, skip_bad), validate_images(test, look, skip_bad)


def split_data(data: Dataset, config: RunConfig) -> tuple[Samples, Samples]:
    """Training images, and those that a run with this configuration is tested on, as they lie there."""
    train, test = (data.train, data.test) if not config.validation else hold_out(data.train, config.validation, config.seed)
    if config.per_class is None:
        return train, test
    return train.first_of_each(config.per_class), test.first_of_each(config.per_class)


def load_test_images(config: RunConfig) -> Samples:
    """What a run with this configuration is tested on."""
    return split_data(load_dataset(config.dataset), config)[1]


def evaluate_after_task(
    model: ContinualClassifier, seen: Samples, give_task: bool, tasks: Sequence[Sequence[str]] | None = None
) -> TaskResult:
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


def plan_tasks(config: RunConfig, data: Dataset) -> list[list[str]]:
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
        **data_concerns(config, model, train, test),
        "protocol": protocols.protocol(model.method.options, config.give_task, config.joint),
        "environment": environment(model.device),
    }


def data_concerns(config: RunConfig, model: ContinualClassifier, train: Samples, test: Samples) -> dict[str, Any]:
    """What a reader of the figures should know of data and backbone; resuming does not depend on it."""
    repeated = len(find_duplicates(test, train))
    warnings = [
        data_warnings.duplicate_warning(repeated, len(test)),
        data_warnings.pretraining_warning(model.backbone.name, config.dataset),
    ]
    return {"test_images_in_training": repeated, "warnings": [warning for warning in warnings if warning]}
