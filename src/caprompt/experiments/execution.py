"""Run a whole class-incremental experiment: a dataset is split into tasks, learned one after another, and tested after each.

With `joint` the same tasks are learned all at once, as an upper bound: one call of `learn`, one row of results, still by task.

A run folder holds
    run.json        the plan, written first: configuration, class order, split, seed, backbone hash, versions, machine
    model/          the model after the last finished task, and its checkpoint within the current one
    metrics.jsonl   a line per epoch and per test, written during the run (`callbacks.metrics_log`)
    results.json    the accuracy matrix so far, the metrics that follow from it, and training seconds
    predictions.npz, cost.json   the final test image by image, and memory and parameters (`artifacts`)
    curve.png       accuracy after each task; not for a joint run
and can be stopped at any moment and resumed to the same end. Test images are used after each task, never before.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from caprompt import checkpoint, protocols
from caprompt.callbacks.events import Callback, TaskEvaluated, compose
from caprompt.callbacks.metrics_log import LOG, MetricsLog
from caprompt.checkpoint.model import finish_killed_save
from caprompt.classifier import ContinualClassifier
from caprompt.data import Dataset, Samples, load_dataset
from caprompt.data.duplicates import find_duplicates
from caprompt.data.image_cache import ImageCache
from caprompt.data.tasks import hold_out, order_classes, split_tasks
from caprompt.data.validation import validate_images
from caprompt.errors import DataError, InputError, ModelFolderError
from caprompt.experiments import artifacts, data_warnings
from caprompt.experiments.config import RunConfig, select_recommended_options
from caprompt.experiments.run_folder import (
    FORMAT,
    RunResult,
    TaskResult,
    check_same_plan,
    describe_environment,
    is_empty_folder,
    read_finished_epochs,
)
from caprompt.outputs import Evaluation
from caprompt.utils import files
from caprompt.utils.communication import get_communicator

__all__ = ["load_splits", "load_test_images", "plan_experiment", "run_experiment", "split_data"]


def run_experiment(
    config: RunConfig,
    folder: Path,
    *,
    resume: bool = False,
    skip_bad: bool = False,
    device: str = "auto",
    callbacks: Callback | Sequence[Callback] = (),
) -> RunResult:
    """Run an experiment in its folder, or resume it there. Everything is checked before anything is written."""
    model, tasks, train, test = _prepare(config, skip_bad, device)
    communicator = get_communicator()
    if communicator.rank == 0:
        _begin_folder(folder, _make_plan(config, model, tasks, train, test), resume)
    communicator.wait()

    artifacts.reset_peak_memory(model.device)
    results = RunResult.load(folder)
    callback = compose(callbacks) if callable(callbacks) else compose(*callbacks)
    if communicator.rank == 0:  # of several processes, the first alone writes
        callback = compose(MetricsLog(folder / LOG, read_finished_epochs(folder / "model"), results.matrix), callback)
    calls = [[name for names in tasks for name in names]] if config.joint else tasks  # the classes of each call of `learn`
    if checkpoint.exists(folder / "model"):
        model = ContinualClassifier.load(folder / "model", device=device)
    while not results.finished:
        done = len(results.rows)
        if len(model.tasks) == done:
            model.learn(
                train.select_classes(calls[done]),
                checkpoint_dir=folder / "model",
                resume=resume,
                again=True,
                keep_versions=0,
                callbacks=callback,
            )
        else:  # it was learned by a process that was killed before the test
            communicator.wait()  # until all processes have loaded the model
            if communicator.rank == 0:
                with suppress(ModelFolderError, OSError):  # the model can be read without it
                    finish_killed_save(folder / "model")
        output = model.compute_outputs(test.select_classes(model.classes), give_task=config.give_task, communicator=communicator)
        row = _make_row(model, model.score_outputs(output, tasks if config.joint else None))
        results = replace(results, rows=[*results.rows, row])
        if communicator.rank == 0:
            if results.finished:
                artifacts.save_artifacts(folder, model, output, config.give_task)
                _draw_curve(folder, config, results)
            results.save()  # last: what is finished is never looked at again
        callback(TaskEvaluated(results.matrix))
    return results


def _draw_curve(folder: Path, config: RunConfig, results: RunResult) -> None:
    """Draw the accuracy after each task; a joint run has none."""
    if config.joint:
        return
    from caprompt.experiments.plots import plot_accuracy_curve

    is_honest = protocols.parse_kind(results.protocol) == "honest"
    title = "" if is_honest else protocols.format_percent_title("accuracy after each task", results.protocol)
    plot_accuracy_curve({config.method: [results.matrix]}, folder / "curve.png", title)


def _begin_folder(folder: Path, plan: Mapping[str, Any], resume: bool) -> None:
    """Write the plan of a run to its folder; if it is resumed, check that it is the same."""
    if resume and (folder / "run.json").is_file():
        check_same_plan(folder, plan)
    elif folder.exists() and not is_empty_folder(folder):
        raise InputError(f"'{folder}' is not empty; choose another folder, or resume the run there with resume=True")
    else:
        files.write_json(folder / "run.json", plan)


def plan_experiment(config: RunConfig, *, skip_bad: bool = False, device: str = "auto") -> dict[str, Any]:
    """Check everything that `run_experiment` checks before it writes, and return what it would write to `run.json`."""
    return _make_plan(config, *_prepare(config, skip_bad, device))


def _prepare(config: RunConfig, skip_bad: bool, device: str) -> tuple[ContinualClassifier, list[list[str]], Samples, Samples]:
    """Return the untrained model, the classes of each task, and the training and test images."""
    data = load_dataset(config.dataset)
    train, test = load_splits(data, config, skip_bad)
    options = {**select_recommended_options(data.options, config.method), **config.options}
    tasks = _plan_tasks(config, data)
    model = ContinualClassifier(config.method, config.backbone, seed=config.seed, device=device, **options)
    return model, tasks, train, test


def load_splits(data: Dataset, config: RunConfig, skip_bad: bool) -> tuple[Samples, Samples]:
    """Return training and test images (or validation images in their place), after decoding each of them once."""
    train, test = split_data(data, config)
    untested = [name for name in train.classes if name not in test.classes]
    if untested:
        raise DataError(f"class '{untested[0]}' has too few images for a validation split; every class needs two or more")
    cache, communicator = ImageCache(budget_bytes=0), get_communicator()
    return (
        validate_images(train, cache, skip_bad, communicator=communicator),
        validate_images(test, cache, skip_bad, communicator=communicator),
    )


def split_data(data: Dataset, config: RunConfig) -> tuple[Samples, Samples]:
    """Return the training images and the test images of a run with this configuration, not yet decoded."""
    train, test = (data.train, data.test) if not config.validation else hold_out(data.train, config.validation, config.seed)
    if config.per_class is None:
        return train, test
    return train.select_per_class(config.per_class), test.select_per_class(config.per_class)


def load_test_images(config: RunConfig) -> Samples:
    """Return the test images of a run with this configuration."""
    return split_data(load_dataset(config.dataset), config)[1]


def _make_row(model: ContinualClassifier, evaluation: Evaluation) -> TaskResult:
    """Return one row of the accuracy matrix, with what training its task cost."""
    seconds = sum(record["seconds"] for record in model.history if record["call"] == model.num_calls - 1)
    return TaskResult(
        accuracies=tuple(score.accuracy for score in evaluation.tasks),
        images=tuple(score.images for score in evaluation.tasks),
        task_identification=evaluation.task_identification,
        mean_passes=evaluation.mean_passes,
        seconds=round(seconds, 3),
    )


def _plan_tasks(config: RunConfig, data: Dataset) -> list[list[str]]:
    """Return the classes of each task; tasks that are lists of class names also fix the class order."""
    tasks = config.tasks if config.tasks is not None else data.tasks
    return split_tasks(order_classes(data.train.classes, config.order, config.seed), tasks)


def _make_plan(
    config: RunConfig, model: ContinualClassifier, tasks: Sequence[Sequence[str]], train: Samples, test: Samples
) -> dict[str, Any]:
    """Return everything that identifies this run; a resumed run must have the same."""
    return {
        "format": FORMAT,
        "config": config.model_dump(mode="json"),
        "options": model.method.options.model_dump(mode="json"),
        "backbone": model.backbone.describe(),
        "tasks": [list(names) for names in tasks],
        "train": {"images": len(train), "sha256": train.digest()},
        "test": {
            "images": len(test),
            "sha256": test.digest(),
            "from": "training images" if config.validation else "test images",
        },
        "skipped": [*train.skipped, *test.skipped],
        **_check_data(config, model, train, test),
        "protocol": protocols.describe_protocol(model.method.options, config.give_task, config.joint),
        "environment": describe_environment(model.device),
    }


def _check_data(config: RunConfig, model: ContinualClassifier, train: Samples, test: Samples) -> dict[str, Any]:
    """Return warnings about the data and the backbone; resuming does not depend on them."""
    repeated = len(find_duplicates(test, train))
    warnings = [
        data_warnings.make_duplicate_warning(repeated, len(test)),
        data_warnings.make_pretraining_warning(model.backbone.name, config.dataset),
    ]
    return {"test_images_in_training": repeated, "warnings": [warning for warning in warnings if warning]}
