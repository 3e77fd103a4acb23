"""`ContinualClassifier`, the main public class: it learns new image classes whenever they come, and predicts their names.

    from caprompt import ContinualClassifier

    model = ContinualClassifier()
    model.learn("photos/week1")                 # a folder per class; also a CSV, or (images, labels)
    model.learn("photos/week2")                 # new classes are simply new
    model.predict_one("cat.jpg").label
    model.save("pets")
    model = ContinualClassifier.load("pets")    # months later, in another process: learn on

Further images of known classes may come in any call. CAPrompt leaves every old prompt as it is and merges the images into the
statistics of their classes; methods that store no statistics train on them like on any others.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from caprompt import checkpoint, methods, protocols
from caprompt.backbones import fp8
from caprompt.backbones.weights import DEFAULT_BACKBONE, Backbone, load_backbone
from caprompt.callbacks.events import Callback, Consolidating, EpochEnded, ImagesChecked, LearnEnded, LearnStarted, compose
from caprompt.checkpoint.model import (
    IN_PROGRESS,
    get_options_for_device,
    get_saved_options,
    load_saved_backbone,
    read_stopped_call,
    select_by_prefix,
)
from caprompt.data.images import ImageInput
from caprompt.data.samples import Samples
from caprompt.data.sources import Source, read_images, read_source
from caprompt.data.validation import validate_images
from caprompt.engine import trainer
from caprompt.engine.inference import PredictorCache, choose_batch_size, predict_samples
from caprompt.engine.inputs import InputPipeline, RepeatableBatches
from caprompt.errors import InputError, ModelFolderError, OptionError
from caprompt.methods.base import Batches, MethodOutput
from caprompt.methods.options import validate_options
from caprompt.outputs import Evaluation, Prediction, make_evaluation, make_predictions
from caprompt.utils import optimizers
from caprompt.utils.devices import FP8, resolve_device, resolve_dtype
from caprompt.utils.random import derive_seed, make_generator
from caprompt.utils.throttle import Throttle

__all__ = ["ContinualClassifier", "LabeledOutput"]

RENAMED_ARGUMENTS = {"folder": "checkpoint_dir", "listen": "callbacks"}  # of `learn`, until the next minor version


@dataclass(frozen=True)
class LabeledOutput:
    """The raw output of a model for N labeled images, in their order, and what is needed to score it."""

    samples: Samples
    targets: Tensor  # (N,), indices into the model's classes, on the CPU
    output: MethodOutput  # N rows
    protocol: str
    seconds: float  # that prediction took


class ContinualClassifier:
    """An image classifier that learns new classes call by call. Labels are strings; the number of classes is not fixed."""

    def __init__(
        self,
        method: str = "caprompt",
        backbone: str | Path | Backbone = DEFAULT_BACKBONE,
        *,
        seed: int = 0,
        device: str = "auto",
        **options: Any,
    ) -> None:
        self.backbone = backbone if isinstance(backbone, Backbone) else load_backbone(backbone)
        if not isinstance(seed, int) or seed < 0:
            raise OptionError(f"the seed must be a non-negative integer, not '{seed}'")
        self.seed = seed
        self.device = resolve_device(device)
        self.classes: list[str] = []
        self.history: list[dict[str, Any]] = []
        self.num_calls = 0
        self.images_seen: dict[str, int] = {}
        self._predictors = PredictorCache()
        self._vit = self.backbone.build().to(self.device)
        self.method = methods.build_method(method, self._vit, options).to(self.device)
        self._configure_backbone()

    def __repr__(self) -> str:
        return (
            f"ContinualClassifier({self.method.name!r}, backbone={self.backbone.name!r}, "
            f"{len(self.classes)} classes in {len(self.tasks)} tasks)"
        )

    @property
    def tasks(self) -> list[list[str]]:
        """The classes that each task brought, in order."""
        names = iter(self.classes)
        return [[next(names) for _ in range(size)] for size in self.method.task_sizes]

    # -- learning ----------------------------------------------------------------------------------------------------------

    def learn(
        self,
        source: Source,
        *,
        checkpoint_dir: str | Path | None = None,
        resume: bool = False,
        skip_bad: bool = False,
        callbacks: Callback | Sequence[Callback] = (),
        **renamed: Any,
    ) -> Samples:
        """Learn labeled images: a folder per class, a CSV of paths and labels, or (images, labels). Return what was learned.

        With `checkpoint_dir`, the model is saved there at the end, and checkpoints are written after epochs, as often as that
        is cheap; `resume` continues from the last one to the very same model.
        If the call fails, the model is as it was before.
        `callbacks` are functions of one event (`caprompt.callbacks`), called in their order.
        """
        if renamed:
            current = _rename_arguments(renamed)
            return self.learn(
                source,
                **{"checkpoint_dir": checkpoint_dir, "resume": resume, "skip_bad": skip_bad, "callbacks": callbacks, **current},
            )
        callback = callbacks if callable(callbacks) else compose(*callbacks)
        pipeline = InputPipeline(self.backbone, self.device)
        samples = validate_images(
            read_source(source), pipeline.cache, skip_bad, lambda done, total: callback(ImagesChecked(done, total))
        )
        directory = Path(checkpoint_dir) if checkpoint_dir is not None else None
        if directory is not None:
            self._check_directory(directory)
            if not resume:
                checkpoint.discard(directory / IN_PROGRESS)
        with self._restore_on_failure():
            self._learn(samples, pipeline, directory, resume, callback)
            if directory is not None:
                self._check_directory(directory)
            self.num_calls += 1
            for name, count in samples.counts().items():
                self.images_seen[name] = self.images_seen.get(name, 0) + count
            if directory is not None:
                self.save(directory)
        if directory is not None:
            checkpoint.discard(directory / IN_PROGRESS)
        return samples

    def _check_directory(self, directory: Path) -> None:
        """Refuse a folder that cannot be made, or a model that someone else has saved since this one was loaded."""
        in_the_way = next((path for path in (directory, *directory.parents) if path.exists() and not path.is_dir()), None)
        if in_the_way is not None:
            raise ModelFolderError(f"the model cannot be saved in '{directory}': '{in_the_way}' is a file; choose another folder")
        if checkpoint.exists(directory) and checkpoint.read_config(directory)["calls"] != self.num_calls:
            raise ModelFolderError(
                f"the model in '{directory}' is not the one that is learning; load it again, or choose another folder"
            )

    def _learn(self, samples: Samples, pipeline: InputPipeline, directory: Path | None, resume: bool, callback: Callback) -> None:
        start_time = time.perf_counter()
        self._predictors.clear()  # they were captured from the model as it was
        digest = samples.digest() if directory is not None else ""
        stopped = self._restore_stopped_call(directory, digest) if resume else None
        new = tuple(name for name in samples.classes if name not in set(self.classes))
        if stopped is None:
            self._begin_task(new)
        else:
            new = tuple(stopped.config["progress"]["new_classes"])
        known = tuple(name for name in samples.classes if name not in new)

        trained = samples if self.method.trains_on_known_classes else samples.select_classes(new)
        self.method.choose_effort(len(trained))
        effort = self.method.effort
        if len(trained):
            first_epoch = stopped.config["progress"]["epochs_done"] if stopped else 0
            epochs = self.method.epochs
            reason = replace(effort, epochs=epochs).describe(len(trained)) if effort.chosen and epochs else ""
            callback(LearnStarted(len(self.tasks), new, known, len(trained), epochs, first_epoch, reason))
            if stopped is None:
                self.method.prepare(self._eval_batches(trained, pipeline), self._make_generator("prepare"))

            throttle = Throttle()

            def save(ended: EpochEnded, optimizer: torch.optim.Optimizer) -> None:
                self.history.append({"call": self.num_calls, **ended.as_record()})
                if directory is not None:
                    progress = {"epochs_done": ended.epoch + 1, "digest": digest, "new_classes": new}
                    throttle(lambda: self._write(directory / IN_PROGRESS, progress, optimizers.get_optimizer_state(optimizer)))

            optimizer_tensors = select_by_prefix(stopped.tensors, "optimizer.") if stopped else None
            seed = derive_seed(self.seed, "call", self.num_calls)
            epoch_batches = pipeline.train_batches(trained, self._targets(trained), self.method.options, seed, effort.batch_size)
            trainer.fit(
                self.method, epoch_batches, start=first_epoch, optimizer_tensors=optimizer_tensors, callback=callback, save=save
            )
        callback(Consolidating())
        self.method.consolidate(self._eval_batches(samples, pipeline), self._make_generator("consolidate"))
        callback(LearnEnded(len(self.classes), time.perf_counter() - start_time))

    def _eval_batches(self, samples: Samples, pipeline: InputPipeline) -> Batches:
        """Return repeatable batches of every image once, without augmentation; the released protocol needs one class per batch."""
        size, targets, options = choose_batch_size(len(samples), None, self.device), self._targets(samples), self.method.options

        def start() -> Batches:
            for positions, own_size in protocols.group_for_batches(options, targets, size):
                part = samples.select(positions)
                yield from pipeline.eval_batches(part, self._targets(part), options, own_size)

        return RepeatableBatches(start)

    def _begin_task(self, new: Sequence[str]) -> None:
        if new:
            self.classes.extend(new)
            self.method.set_class_names(self.classes)
            self.method.begin_task(len(new), self._make_generator("begin"))

    def _make_generator(self, purpose: str) -> torch.Generator:
        return make_generator(self.seed, "call", self.num_calls, purpose)

    @contextmanager
    def _restore_on_failure(self) -> Iterator[None]:
        before = {name: tensor.clone() for name, tensor in self.method.state().items()}
        task_sizes, classes, history, num_calls = (
            list(self.method.task_sizes),
            list(self.classes),
            list(self.history),
            self.num_calls,
        )
        images_seen = dict(self.images_seen)
        try:
            yield
        except BaseException:
            self.classes, self.history, self.num_calls, self.images_seen = classes, history, num_calls, images_seen
            self._rebuild_method(task_sizes, before)
            raise

    def _rebuild_method(self, task_sizes: Sequence[int], state: Mapping[str, Tensor]) -> None:
        self._predictors.clear()
        fresh = type(self.method)(self._vit, self.method.options).to(self.device)
        fresh.restore(task_sizes, state)
        self.method = fresh

    # -- prediction --------------------------------------------------------------------------------------------------------

    def predict_one(self, image: ImageInput | str, *, top: int = 5, **options: Any) -> Prediction:
        """Predict the class of one image: a path, a PIL image or an array."""
        return self.predict([image], top=top, **options)[0]

    def predict(
        self,
        images: str | Path | Sequence[ImageInput | str],
        *,
        top: int = 5,
        batch_size: int | None = None,
        **options: Any,
    ) -> list[Prediction]:
        """Predict the class of each image, independently of the rest of its batch.

        `images` is a sequence of paths, PIL images or arrays, or the path of one file or of a folder, whose images are taken in
        sorted order at any depth. `options` override those of the method that concern prediction, such as cycles="auto".
        """
        self._require_classes()
        if top < 1:
            raise OptionError(f"top must be at least 1, not {top}")
        inputs = read_images(images)
        if not inputs:
            return []
        samples = Samples(inputs, ("unlabeled",) * len(inputs))
        pipeline = InputPipeline(self.backbone, self.device, cache_bytes=0)  # each image is read once
        size = choose_batch_size(len(inputs), batch_size, self.device)
        with self.override_options(options):
            predictor = self._predictors.get(self.method, size)
            output = predict_samples(predictor, pipeline, samples, self.method.options, size)
        return list(make_predictions(output, self.classes, top))

    def evaluate(
        self,
        source: Source,
        *,
        batch_size: int | None = None,
        skip_bad: bool = False,
        give_task: bool = False,
        tasks: Sequence[Sequence[str]] | None = None,
        **options: Any,
    ) -> Evaluation:
        """Measure accuracy on labeled images, by task or by other groups of classes (`tasks`).

        `give_task` passes each image's true task to the method.
        """
        labeled = self.compute_outputs(source, batch_size=batch_size, skip_bad=skip_bad, give_task=give_task, **options)
        return self.score_outputs(labeled, tasks)

    def compute_outputs(
        self,
        source: Source,
        *,
        batch_size: int | None = None,
        skip_bad: bool = False,
        give_task: bool = False,
        **options: Any,
    ) -> LabeledOutput:
        """Return the raw output for labeled images: logits of every class, task weights and forward passes of each image."""
        pipeline = InputPipeline(self.backbone, self.device)
        samples, targets = self.read_labeled(source, pipeline, skip_bad)
        size = choose_batch_size(len(samples), batch_size, self.device)
        with self.override_options(options):
            start_time = time.perf_counter()
            output = predict_samples(
                self._predictors.get(self.method, size),
                pipeline,
                samples,
                self.method.options,
                size,
                tasks=self.method.task_of_class[targets].tolist(),
                give_task=give_task,
            )
            seconds = time.perf_counter() - start_time
        return LabeledOutput(
            samples, torch.tensor(targets), output, protocols.describe_protocol(self.method.options, give_task), seconds
        )

    def score_outputs(self, labeled: LabeledOutput, tasks: Sequence[Sequence[str]] | None = None) -> Evaluation:
        """Return the accuracies behind raw outputs, by task or by other groups of classes."""
        skipped = labeled.samples.skipped
        return make_evaluation(labeled.output, labeled.targets, self.classes, tasks or self.tasks, skipped, labeled.protocol)

    def read_labeled(self, source: Source, pipeline: InputPipeline, skip_bad: bool) -> tuple[Samples, list[int]]:
        """Return images to test with and the index of each one's class; every class must have been learned."""
        self._require_classes()
        samples = validate_images(read_source(source), pipeline.cache, skip_bad)
        for name in samples.classes:
            if name not in self.classes:
                raise InputError(f"class '{name}' has not been learned; this model knows: {', '.join(self.classes)}")
        return samples, self._targets(samples)

    def _targets(self, samples: Samples) -> list[int]:
        indices = {name: index for index, name in enumerate(self.classes)}
        return [indices[label] for label in samples.labels]

    @contextmanager
    def override_options(self, options: Mapping[str, Any]) -> Iterator[None]:
        """Use other options within the context; only those that do not concern training."""
        before = self.method.options
        for name in options:
            if name in type(before).model_fields and name not in before.at_prediction:
                raise InputError(f"option '{name}' belongs to training; it cannot be changed at prediction")
        changed = validate_options(type(before), {**before.model_dump(), **options}, owner=self.method.name)
        try:
            self.method.options = changed
            self._configure_backbone()
            yield
        finally:
            self.method.options = before
            self._configure_backbone()

    def _configure_backbone(self) -> None:
        """Set the frozen backbone to the dtype and the compilation that the options set."""
        self._vit.recompute = self.method.options.recompute
        self._vit.set_compiled(self.method.options.compile)
        precision = self.method.options.precision
        if fp8.set_precision(self._vit, resolve_dtype(precision, self.device), precision == FP8, self.backbone.weights):
            self._predictors.clear()

    def _require_classes(self) -> None:
        if not self.classes:
            raise InputError("this model has not learned any class yet; call learn first")

    # -- saving and loading ------------------------------------------------------------------------------------------------

    def save(self, folder: str | Path) -> None:
        """Write the model: a few small files, replaced together or not at all. The backbone is named, not copied."""
        self._write(Path(folder), progress=None, optimizer_tensors={})

    def _write(self, folder: Path, progress: Mapping[str, Any] | None, optimizer_tensors: Mapping[str, Tensor]) -> None:
        config = {**self._config(), "progress": progress}
        task_of_class = self.method.task_of_class.tolist()
        classes = [
            {"name": name, "task": task + 1, "images": self.images_seen.get(name, 0)}
            for name, task in zip(self.classes, task_of_class, strict=True)
        ]
        tensors = {
            **{f"method.{name}": tensor for name, tensor in self.method.state().items()},
            **{f"optimizer.{name}": tensor for name, tensor in optimizer_tensors.items()},
        }
        checkpoint.write(folder, checkpoint.Saved(config, classes, tensors, self.history))

    def _config(self) -> dict[str, Any]:
        return {
            "method": self.method.name,
            "options": self.method.options.model_dump(mode="json"),
            "backbone": {"name": self.backbone.name, "path": str(self.backbone.path), "sha256": self.backbone.sha256},
            "seed": self.seed,
            "task_sizes": self.method.task_sizes,
            "calls": self.num_calls,
        }

    @classmethod
    def load(cls, folder: str | Path, *, backbone: str | Path | None = None, device: str = "auto") -> ContinualClassifier:
        """Load a saved model. `backbone` is the path of the backbone's weights file, if it was moved."""
        folder = Path(folder)
        if not checkpoint.exists(folder) and checkpoint.exists(folder / IN_PROGRESS):
            raise ModelFolderError(f"learning was stopped before '{folder}' held a finished model; continue it with resume=True")
        saved = checkpoint.read(folder)
        config = saved.config
        weights = load_saved_backbone(config["backbone"], folder, backbone)
        model = cls(
            config["method"], weights, seed=config["seed"], device=device, **get_options_for_device(resolve_device(device), config)
        )
        model._restore(saved)
        return model

    @classmethod
    def load_stopped(cls, folder: str | Path, *, device: str = "auto") -> ContinualClassifier | None:
        """Return the model, still without classes, whose very first call was stopped in this folder; `learn` with `resume=True`."""
        folder = Path(folder)
        if checkpoint.exists(folder) or not checkpoint.exists(folder / IN_PROGRESS):
            return None
        config = checkpoint.read_config(folder / IN_PROGRESS)
        weights = load_saved_backbone(config["backbone"], folder, None)
        return cls(config["method"], weights, seed=config["seed"], device=device, **get_saved_options(config))

    def _restore(self, saved: checkpoint.Saved) -> None:
        self.classes = [entry["name"] for entry in saved.classes]
        self.images_seen = {entry["name"]: entry["images"] for entry in saved.classes}
        self.history = [dict(record) for record in saved.metrics]
        self.num_calls = saved.config["calls"]
        self._rebuild_method(saved.config["task_sizes"], select_by_prefix(saved.tensors, "method."))

    def _restore_stopped_call(self, directory: Path | None, digest: str) -> checkpoint.Saved | None:
        """Restore the checkpoint of a stopped call, if there is one for this model and these images."""
        saved = read_stopped_call(directory, self._config(), digest) if directory is not None else None
        if saved is not None:
            self._restore(saved)
        return saved


def _rename_arguments(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return arguments of `learn` under their current names, with a warning; an unknown one is a TypeError."""
    for name in arguments:
        if name not in RENAMED_ARGUMENTS:
            raise TypeError(f"ContinualClassifier.learn() got an unexpected keyword argument '{name}'")
        warnings.warn(f"'{name}' of learn is now '{RENAMED_ARGUMENTS[name]}'", DeprecationWarning, stacklevel=3)
    return {RENAMED_ARGUMENTS[name]: value for name, value in arguments.items()}
