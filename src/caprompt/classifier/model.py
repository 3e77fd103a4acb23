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

import shutil
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from caprompt import __version__, checkpoint, methods, protocols
from caprompt.backbones import fp8
from caprompt.backbones.weights import DEFAULT_BACKBONE, Backbone, load_backbone
from caprompt.calibration import MIN_IMAGES, Calibration, Evidence, dump_evidence, fit_calibration, load_evidence, make_evidence
from caprompt.callbacks.events import Callback, Consolidating, EpochEnded, ImagesChecked, LearnEnded, LearnStarted, compose
from caprompt.callbacks.progress_display import show_progress
from caprompt.checkpoint import hub
from caprompt.checkpoint.model import (
    IN_PROGRESS,
    find_foreign_file,
    get_options_for_device,
    get_saved_options,
    load_saved_backbone,
    read_stopped_call,
    select_by_prefix,
)
from caprompt.classifier.class_table import ClassTable
from caprompt.classifier.explanation import COPIES, Explanation, explain
from caprompt.classifier.info import ModelInfo, make_info
from caprompt.classifier.unlearned import SKIP, check_choice, make_unlearned_error, split_learned
from caprompt.data.labels import Label, Names
from caprompt.data.samples import Samples
from caprompt.data.sources import Source, explain_without_skipping, read_images, read_source
from caprompt.data.validation import validate_images
from caprompt.engine import trainer
from caprompt.engine.inference import PredictorCache, choose_batch_size, predict_samples
from caprompt.engine.inputs import InputPipeline, RepeatableBatches
from caprompt.errors import InputError, ModelFolderError, OptionError
from caprompt.methods.base import Batches, HonestScores, Method, MethodOutput
from caprompt.methods.options import Options, validate_options
from caprompt.methods.removal import remove_class
from caprompt.outputs import (
    Evaluation,
    Prediction,
    compute_probabilities,
    make_evaluation,
    make_predictions,
    make_unknown_score,
    map_to_tasks,
)
from caprompt.utils import optimizers
from caprompt.utils.devices import FP8, resolve_device, resolve_dtype
from caprompt.utils.paths import expand_user
from caprompt.utils.random import derive_seed, make_generator
from caprompt.utils.throttle import Throttle

__all__ = ["ContinualClassifier", "LabeledOutput"]

NUM_VERSIONS = 5  # earlier versions of a model that are kept for `undo`
MEGABYTE = 1_000_000
FALSE_ALARMS = 0.05  # share of images of learned classes that may be marked as unknown
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
    """An image classifier that learns new classes call by call. Labels are text or integers; any number of classes may come."""

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
        self.table = ClassTable()
        self.calibration = Calibration()
        self._evidence: list[Evidence] = []  # for later calibrations
        self.history: list[dict[str, Any]] = []
        self.num_calls = 0
        self._identity: str | None = None  # of the version on disk that this model was loaded from or last saved as
        self._predictors = PredictorCache()
        self._vit = self.backbone.build().to(self.device)
        self.method = methods.build_method(method, self._vit, options).to(self.device)
        self._configure_backbone()

    def __repr__(self) -> str:
        return (
            f"ContinualClassifier({self.method.name!r}, backbone={self.backbone.name!r}, "
            f"{len(self.classes)} classes in {len(self.tasks)} tasks)"
        )

    def info(self) -> ModelInfo:
        """Return what this model holds: classes, lessons, backbone, and what is kept of images."""
        return make_info(self._make_saved(None, {}))

    @property
    def identity(self) -> str | None:
        """The version on disk that this model was loaded from or last saved as (`checkpoint.read_identity`)."""
        return self._identity

    @property
    def classes(self) -> list[str]:
        """Names of the classes, in the order in which they were learned."""
        return self.table.names

    @property
    def labels(self) -> list[Label]:
        """The labels of `classes`: the same names, or the integers that they were taught as."""
        return self.table.labels

    @property
    def images_seen(self) -> dict[str, int]:
        """Number of images that were learned of each class."""
        return self.table.images_seen

    @property
    def lessons(self) -> list[dict[str, Any]]:
        """Records of the calls of `learn` and of the edits, in their order."""
        return self.table.lessons

    @property
    def tasks(self) -> list[list[str]]:
        """The classes that each task brought, in order; classes of several tasks that were joined count to the first."""
        members: list[list[str]] = [[] for _ in self.method.task_sizes]
        task_of_output = self.method.task_of_class.tolist()
        for name, output in zip(self.classes, self.table.first_outputs(), strict=True):
            members[task_of_output[output]].append(name)
        return members

    # -- learning ----------------------------------------------------------------------------------------------------------

    def learn(
        self,
        source: Source,
        *,
        checkpoint_dir: str | Path | None = None,
        resume: bool = False,
        skip_bad: bool = False,
        again: bool = False,
        keep_versions: int = NUM_VERSIONS,
        names: Names | None = None,
        progress: bool | None = None,
        callbacks: Callback | Sequence[Callback] = (),
        **renamed: Any,
    ) -> Samples:
        """Learn labeled images: a folder per class, a CSV of paths and labels, (images, labels), or a dataset. Return the images.

        docs/data.md lists all sources. `names` are the names of classes whose labels are numbers.

        With `checkpoint_dir`, the model is saved there at the end, and checkpoints are written after epochs, as often as that
        is cheap; `resume` continues from the last one to the very same model. There, `keep_versions` earlier versions of the model
        are kept as well, for `undo`. Images that were learned before are left out, unless `again`.
        If the call fails, the model is as it was before.
        `callbacks` are functions of one event (`caprompt.callbacks`), called in their order. `progress` shows a progress bar or
        none; by default there is one in notebooks only.
        """
        if renamed:
            current = {"checkpoint_dir": checkpoint_dir, "callbacks": callbacks, **_rename_arguments(renamed)}
            checkpoint_dir, callbacks = current["checkpoint_dir"], current["callbacks"]
        self._require_learning_state()
        if checkpoint_dir is None and resume:
            raise InputError("a stopped call is resumed from its checkpoints; give checkpoint_dir as well")
        directory = None if checkpoint_dir is None else expand_user(checkpoint_dir)
        if directory is not None:
            check_local_folder(directory)
        samples = read_source(source, names)
        self.table.check_label_types(samples)
        with show_progress(progress) as bar:
            callback = compose(*([callbacks] if callable(callbacks) else callbacks), bar)
            if directory is None:
                return self._learn_source(samples, None, False, skip_bad, again, 0, callback)
            with checkpoint.lock_folder(directory):
                self._check_directory(directory)
                if not resume:
                    checkpoint.discard(directory / IN_PROGRESS)
                samples = self._learn_source(samples, directory, resume, skip_bad, again, keep_versions, callback)
                checkpoint.discard(directory / IN_PROGRESS)
        return samples

    def _learn_source(
        self,
        samples: Samples,
        directory: Path | None,
        resume: bool,
        skip_bad: bool,
        again: bool,
        keep_versions: int,
        callback: Callback,
    ) -> Samples:
        pipeline = InputPipeline(self.backbone, self.device)
        samples = validate_images(samples, pipeline.cache, skip_bad, lambda done, total: callback(ImagesChecked(done, total)))
        if not again:
            samples = self._leave_out_learned(samples)
        with self._restore_on_failure():
            start_time = time.perf_counter()
            self._learn(samples, pipeline, directory, resume, callback)
            self.num_calls += 1
            self.table.record_lesson(samples, self._describe_lesson(time.perf_counter() - start_time))
            if directory is not None:
                self.save_locked(directory, keep_versions)
        return samples

    def _leave_out_learned(self, samples: Samples) -> Samples:
        """Return the images that have not been learned yet; a published benchmark is used unchanged."""
        learned = set() if samples.published else set(self.table.find_learned(samples))
        if not learned:
            return samples
        if len(learned) == len(samples):
            raise InputError(f"all {len(samples)} images were learned before; learn them once more with again=True")
        note = f"{len(learned)} image(s) that were learned before were left out; learn them once more with again=True"
        rest = samples.select(position for position in range(len(samples)) if position not in learned)
        return replace(rest, skipped=(*samples.skipped, note))

    def _describe_lesson(self, seconds: float | None = None) -> dict[str, Any]:
        """Return what is recorded of every lesson and edit."""
        effort = self.method.effort
        settings = {"epochs": self.method.epochs, "batch_size": effort.batch_size, "learning_rate": effort.learning_rate}
        lesson: dict[str, Any] = {"date": datetime.now(timezone.utc).isoformat(timespec="seconds"), "caprompt": __version__}
        return lesson if seconds is None else {**lesson, "seconds": round(seconds, 1), "settings": settings}

    def _check_directory(self, directory: Path) -> None:
        """Refuse a folder with another model, or with a version of this one that was saved since it was loaded, or a full disk."""
        if checkpoint.exists(directory) and checkpoint.read_identity(directory) != self._identity:
            raise ModelFolderError(
                f"the model in '{directory}' is not the one that is learning; load it again, or choose another folder"
            )
        needed, free = 2 * self.method.estimate_saved_bytes() + MEGABYTE, shutil.disk_usage(directory).free
        if free < needed:
            raise ModelFolderError(
                f"about {needed / MEGABYTE:.0f} MB are needed in '{directory}', but {free / MEGABYTE:.0f} MB are free on its disk; "
                "free some, or choose another folder"
            )

    def _learn(self, samples: Samples, pipeline: InputPipeline, directory: Path | None, resume: bool, callback: Callback) -> None:
        start_time = time.perf_counter()
        self._predictors.clear()  # they were captured from the model as it was
        digest = samples.digest() if directory is not None else ""
        stopped = self._restore_stopped_call(directory, digest) if resume else None
        known_names = set(self.classes)
        new = tuple(name for name in samples.classes if name not in known_names)
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
            epoch_batches = pipeline.train_batches(trained, self._outputs(trained), self.method.options, seed, effort.batch_size)
            trainer.fit(
                self.method, epoch_batches, start=first_epoch, optimizer_tensors=optimizer_tensors, callback=callback, save=save
            )
        callback(Consolidating())
        self.method.consolidate(self._eval_batches(samples, pipeline), self._make_generator("consolidate"))
        self._calibrate_by(self.method.honest_scores)
        callback(LearnEnded(len(self.classes), time.perf_counter() - start_time))

    def _calibrate_by(self, scores: HonestScores | None) -> None:
        """Fit the probabilities to images that were scored as if they had not been learned; not to those of a single class."""
        if scores is None or len(self.classes) < 2:
            return
        labels = torch.tensor(self.table.name_of_output)[scores.labels.cpu()]
        logits, optimistic = (self.table.merge_logits(each) for each in (scores.logits, scores.optimistic))
        self._add_evidence(make_evidence(logits, labels, optimistic))
        self.method.honest_scores = None

    def _add_evidence(self, evidence: Evidence) -> None:
        self.calibration, self._evidence = fit_calibration([*self._evidence, evidence])

    def _eval_batches(self, samples: Samples, pipeline: InputPipeline) -> Batches:
        """Return repeatable batches of every image once, without augmentation; the released protocol needs one class per batch."""
        size, targets, options = choose_batch_size(len(samples), None, self.device), self._outputs(samples), self.method.options

        def start() -> Batches:
            for positions, own_size in self._group(options, targets, size):
                part = samples.select(positions)
                yield from pipeline.eval_batches(part, self._outputs(part), options, own_size)

        return RepeatableBatches(start)

    def _group(self, options: Options, targets: Sequence[int], size: int) -> list[tuple[list[int], int]]:
        """Return which images share batches. Kept features are computed class by class.

        Rounding depends on an image's place in its batch; so the features of a class do not depend on other classes.
        """
        if not getattr(options, "keep_features", False):
            return protocols.group_for_batches(options, targets, size)
        return [([i for i, own in enumerate(targets) if own == target], size) for target in sorted(set(targets))]

    def _begin_task(self, new: Sequence[str]) -> None:
        if new:
            self.table.add(new)
            self.method.set_class_names(self.table.output_names)
            self.method.begin_task(len(new), self._make_generator("begin"))

    def _make_generator(self, purpose: str) -> torch.Generator:
        return make_generator(self.seed, "call", self.num_calls, purpose)

    @contextmanager
    def _restore_on_failure(self) -> Iterator[None]:
        before = {name: tensor.clone() for name, tensor in self.method.state().items()}
        task_sizes, table, evidence = list(self.method.task_sizes), self.table.copy(), list(self._evidence)
        history, num_calls, calibration = list(self.history), self.num_calls, self.calibration
        try:
            yield
        except BaseException:
            self.table, self.history, self.num_calls = table, history, num_calls
            self.calibration, self._evidence = calibration, evidence
            self._rebuild_method(task_sizes, before)
            raise

    def _rebuild_method(self, task_sizes: Sequence[int], state: Mapping[str, Tensor]) -> None:
        self._predictors.clear()
        fresh = self._build_method()
        fresh.restore(task_sizes, state)
        self.method = fresh

    def _build_method(self) -> Method:
        """Return an empty method of the same kind and options."""
        fresh = type(self.method)(self._vit, self.method.options).to(self.device)
        fresh.removed_state = self.method.removed_state
        return fresh

    # -- prediction --------------------------------------------------------------------------------------------------------

    def predict_one(self, image: Any, *, top: int = 5, **options: Any) -> Prediction:
        """Predict the class of one image: a path, a Pillow image, an array or tensor, encoded bytes or an open file."""
        return self.predict([image], top=top, **options)[0]

    def predict(
        self,
        images: Any,
        *,
        top: int = 5,
        coverage: float | None = None,
        false_alarms: float = FALSE_ALARMS,
        batch_size: int | None = None,
        **options: Any,
    ) -> list[Prediction]:
        """Predict the class of each image, independently of the rest of its batch.

        `images` is one image (see `predict_one`), an iterable of images, a dataset, or the path of a folder, whose images are taken
        in sorted order at any depth. With `coverage`, each prediction has a set of classes that holds the true one with that
        probability. `Prediction.unknown` marks images that are probably of none of the learned classes; about a share of
        `false_alarms` of the images of learned classes are marked as well. Both need a calibrated model. `options` override those
        of the method that concern prediction, such as cycles="auto".
        """
        if top < 1:
            raise OptionError(f"top must be at least 1, not {top}")
        for name, share in (("coverage", coverage), ("false_alarms", false_alarms)):
            if share is not None and not 0 < share < 1:
                raise OptionError(f"{name} must be between 0 and 1, not {share}")
        if coverage is not None and not self.calibration.images:
            raise InputError("this model is not calibrated, so its scores say nothing about coverage; calibrate it first")
        output = self._predict_images(images, batch_size, options)
        threshold = self.calibration.get_threshold(false_alarms)
        return [] if output is None else list(make_predictions(output, self.labels, top, coverage, threshold))

    def predict_proba(self, images: Any, *, batch_size: int | None = None, **options: Any) -> NDArray[np.float32]:
        """Return the probability of each class for N images, in the order of `classes`: (N, C)."""
        output = self._predict_images(images, batch_size, options)
        if output is None:
            return np.zeros((0, len(self.classes)), dtype=np.float32)
        return compute_probabilities(output).float().cpu().numpy()

    def _predict_images(self, images: Any, batch_size: int | None, options: Mapping[str, Any]) -> MethodOutput | None:
        """Return the output for images, or None if there are none."""
        self._require_classes()
        inputs = read_images(images)
        if not inputs:
            return None
        samples = Samples(inputs, ("unlabeled",) * len(inputs))
        pipeline = InputPipeline(self.backbone, self.device, cache_bytes=0)  # each image is read once
        size = choose_batch_size(len(inputs), batch_size, self.device)
        with self.override_options(options), explain_without_skipping():
            return self._predict_samples(pipeline, samples, size)

    def explain(
        self, image: Any, *, against: Label | None = None, copies: int = COPIES, batch_size: int | None = None, **options: Any
    ) -> Explanation:
        """Explain the prediction for one image (see `predict_one`): what spoke for it, against the runner-up or another class.

        The heat map comes from `copies` of the image, each without some of its patches (docs/explain.md). `options` override
        those of the method that concern prediction.
        """
        return explain(self, image, against=against, copies=copies, batch_size=batch_size, options=options)

    def evaluate(
        self,
        source: Source,
        *,
        batch_size: int | None = None,
        skip_bad: bool = False,
        give_task: bool = False,
        tasks: Sequence[Sequence[str]] | None = None,
        unknown: str = SKIP,
        names: Names | None = None,
        **options: Any,
    ) -> Evaluation:
        """Measure accuracy on labeled images, by task or by other groups of classes (`tasks`), and find the mistakes.

        `give_task` passes each image's true task to the method. Images of classes that have not been learned are left out, which
        `skipped` says, or refused (`unknown="refuse"`), or reported apart, as `Evaluation.unknown` (`unknown="count"`).
        `names` are the names of classes whose labels are numbers.
        """
        self._require_classes()
        check_choice(unknown, give_task)
        map_to_tasks(self.classes, tasks or self.tasks)  # before any image is read
        known, unlearned = split_learned(read_source(source, names), self.classes, unknown)
        labeled = self.compute_outputs(known, batch_size=batch_size, skip_bad=skip_bad, give_task=give_task, **options)
        evaluation = replace(self.score_outputs(labeled, tasks), unlearned=unlearned.counts())
        if unknown == SKIP or not len(unlearned):
            return evaluation
        output, skipped = self._predict_unlearned(unlearned, batch_size, skip_bad, options)
        score = make_unknown_score(labeled.output, output, self.calibration.get_threshold(FALSE_ALARMS))
        return replace(evaluation, unknown=score, skipped=(*evaluation.skipped, *skipped))

    def _predict_unlearned(
        self, samples: Samples, batch_size: int | None, skip_bad: bool, options: Mapping[str, Any]
    ) -> tuple[MethodOutput, tuple[str, ...]]:
        """Return the raw output for images of classes that have not been learned, and a sentence on each unreadable image."""
        pipeline = InputPipeline(self.backbone, self.device)
        samples = validate_images(samples, pipeline.cache, skip_bad)
        size = choose_batch_size(len(samples), batch_size, self.device)
        with self.override_options(options):
            return self._predict_samples(pipeline, samples, size), samples.skipped

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
            tasks = self.method.task_of_class[self._outputs(samples)].tolist()
            output = self._predict_samples(pipeline, samples, size, tasks=tasks, give_task=give_task)
            seconds = time.perf_counter() - start_time
        return LabeledOutput(
            samples, torch.tensor(targets), output, protocols.describe_protocol(self.method.options, give_task), seconds
        )

    def _predict_samples(self, pipeline: InputPipeline, samples: Samples, size: int, **tasks: Any) -> MethodOutput:
        """Run the method over samples and return its output, with a calibrated logit per class name."""
        output = predict_samples(self._predictors.get(self.method, size), pipeline, samples, self.method.options, size, **tasks)
        return self.convert_output(output)

    def convert_output(self, output: MethodOutput) -> MethodOutput:
        """Return an output of the method with a calibrated logit per class name, from which the scores are computed."""
        return replace(output, logits=self.calibration.apply(self.table.merge_logits(output.logits)))

    def calibrate(self, source: Source, *, batch_size: int | None = None, skip_bad: bool = False) -> Calibration:
        """Fit the probabilities to labeled images that the model has not learned, instead of to its own estimates.

        Save the model afterwards. Calls of `learn` that follow add their own evidence.
        """
        before, self.calibration = self.calibration, Calibration()
        try:
            labeled = self.compute_outputs(source, batch_size=batch_size, skip_bad=skip_bad)
        finally:
            self.calibration = before
        if len(labeled.targets) < MIN_IMAGES or len(self.classes) < 2:
            raise InputError(f"a calibration needs two classes and {MIN_IMAGES} images at least, not {len(labeled.targets)}")
        evidence = make_evidence(labeled.output.logits, labeled.targets)
        self.calibration, self._evidence = fit_calibration([evidence])
        self.table.lessons.append({"kind": "calibrate", **self._describe_lesson(), "images": len(labeled.targets)})
        return self.calibration

    def score_outputs(self, labeled: LabeledOutput, tasks: Sequence[Sequence[str]] | None = None) -> Evaluation:
        """Return the accuracies behind raw outputs, by task or by other groups of classes."""
        samples = labeled.samples
        return make_evaluation(
            labeled.output, labeled.targets, self.classes, tasks or self.tasks, samples.skipped, labeled.protocol, samples.images
        )

    def read_labeled(self, source: Source, pipeline: InputPipeline, skip_bad: bool) -> tuple[Samples, list[int]]:
        """Return images to test with and the index of each one's class; every class must have been learned."""
        self._require_classes()
        samples = validate_images(read_source(source), pipeline.cache, skip_bad)
        for name in samples.classes:
            if name not in self.classes:
                raise make_unlearned_error(name, self.classes)
        return samples, self._targets(samples)

    def _outputs(self, samples: Samples) -> list[int]:
        """Return the method's output for the class of each image, for learning."""
        first = self.table.first_outputs()
        return [first[target] for target in self._targets(samples)]

    def _targets(self, samples: Samples) -> list[int]:
        """Return the index of each image's class."""
        indices = {name: index for index, name in enumerate(self.classes)}
        return [indices[label] for label in samples.labels]

    # -- names that scikit-learn has for the same ----------------------------------------------------------------------------

    def fit(self, source: Any, labels: Any = None, **arguments: Any) -> ContinualClassifier:
        """Learn a source, or images and their labels, as `learn` does: what was learned before stays."""
        self.learn(source if labels is None else (source, labels), **arguments)
        return self

    def score(self, source: Any, labels: Any = None, **arguments: Any) -> float:
        """Return the accuracy on a source, or on images and their labels, as a fraction."""
        return self.evaluate(source if labels is None else (source, labels), **arguments).accuracy / 100

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

    def _require_learning_state(self) -> None:
        if self.method.removed_state:
            raise InputError(
                "this model was published without the sums and class means that learning needs, so it can only predict; "
                "learn with the original, or publish it again with with_sums=True"
            )

    def _require_classes(self) -> None:
        if not self.classes:
            raise InputError("this model has not learned any class yet; call learn first")

    # -- changes to classes ------------------------------------------------------------------------------------------------

    def rename(self, old: str, new: str) -> None:
        """Give a class another name."""
        self.table.rename(old, new, self._describe_lesson())

    def join(self, names: Sequence[str], into: str) -> None:
        """Make one class of several; its probability is the sum of theirs."""
        self.table.join(names, into, self._describe_lesson())

    def forget(self, name: str, *, images: Source | None = None, approximate: bool = False) -> None:
        """Remove a class, exactly: the model is then the one that was never taught it.

        That is possible where nothing was trained on its images, and its share in sums over all images is known: from features
        that the model keeps (option `keep_features`), or from `images`, which must be all that were learned of it. Otherwise an
        `InputError` says why not; with `approximate`, its outputs, statistics and records are removed, and what was trained on
        its images together with others stays.
        """
        self._require_learning_state()
        outputs = self.table.find_outputs(name)
        if len(outputs) == len(self.table.name_of_output):
            raise InputError(f"'{name}' is the only class of this model; delete the model instead")
        samples = self._read_learned(name, images) if images is not None else None
        reason = self.method.explain_inexact(samples is not None)
        if reason is not None and not approximate:
            raise InputError(
                f"'{name}' cannot be forgotten exactly: {reason}; to remove its outputs and records only, set approximate=True"
            )
        with self._restore_on_failure():
            pipeline = InputPipeline(self.backbone, self.device)
            batches = self._eval_batches(samples, pipeline) if samples is not None else None
            for output in reversed(outputs):
                self.method.subtract_class(output, batches)
                self._predictors.clear()
                self.method = remove_class(self.method, output, self._build_method)
                self.table.remove(output, output == outputs[0], self._describe_lesson())
            self.method.refit()

    def _read_learned(self, name: str, source: Source) -> Samples:
        """Return the images of a class from a source; they must be exactly those that were learned."""
        samples = validate_images(read_source(source), InputPipeline(self.backbone, self.device).cache, skip_bad=False)
        samples = samples.select_classes([name])
        outputs = self.table.find_outputs(name)
        if len(outputs) > 1:
            raise InputError(f"'{name}' was joined from {len(outputs)} classes; it can only be forgotten without its images")
        count = self.table.counts[outputs[0]]
        if len(samples) != count or len(self.table.find_learned(samples)) != count:
            raise InputError(f"these are not the {count} images of '{name}' that were learned; give exactly those")
        return samples

    # -- saving and loading ------------------------------------------------------------------------------------------------

    def save(self, folder: str | Path, *, keep_versions: int = NUM_VERSIONS) -> None:
        """Write the model: a few small files, replaced together or not at all. The backbone is named, not copied.

        `keep_versions` earlier versions are kept in the folder, for `undo`.
        """
        folder = expand_user(folder)
        check_local_folder(folder)
        with checkpoint.lock_folder(folder):
            self.save_locked(folder, keep_versions)

    def save_locked(self, folder: Path, keep_versions: int) -> None:
        """Write the model to a folder whose lock the caller holds."""
        self._identity = self._write(folder, None, {}, keep_versions)

    def _write(
        self,
        folder: Path,
        progress: Mapping[str, Any] | None,
        optimizer_tensors: Mapping[str, Tensor],
        keep_versions: int = 0,
    ) -> str:
        return checkpoint.write(folder, self._make_saved(progress, optimizer_tensors), num_versions=keep_versions)

    def _make_saved(self, progress: Mapping[str, Any] | None, optimizer_tensors: Mapping[str, Tensor]) -> checkpoint.Saved:
        config = {**self._config(), "lessons": self.lessons, "calibration": self.calibration.as_dict(), "progress": progress}
        tensors = {
            **{f"method.{name}": tensor for name, tensor in self.method.state().items()},
            **{f"optimizer.{name}": tensor for name, tensor in optimizer_tensors.items()},
        }
        classes = self.table.as_entries(self.method.task_of_class.tolist())
        records = {**self.table.as_tensors(), **dump_evidence(self._evidence)}
        return checkpoint.Saved(config, classes, tensors, self.history, records)

    def _config(self) -> dict[str, Any]:
        return {
            "method": self.method.name,
            "options": self.method.options.model_dump(mode="json"),
            "backbone": {"name": self.backbone.name, "path": str(self.backbone.path), "sha256": self.backbone.sha256},
            "seed": self.seed,
            "task_sizes": self.method.task_sizes,
            "calls": self.num_calls,
            **({"removed": sorted(self.method.removed_state)} if self.method.removed_state else {}),
        }

    @classmethod
    def load(cls, folder: str | Path, *, backbone: str | Path | None = None, device: str = "auto") -> ContinualClassifier:
        """Load a saved model from a folder, or from the Hugging Face hub as `hf:owner/name` or `hf:owner/name@revision`.

        `backbone` is the path of the backbone's weights file, if it was moved.
        """
        folder = Path(folder)
        if not checkpoint.exists(folder) and checkpoint.exists(folder / IN_PROGRESS):
            raise ModelFolderError(f"learning was stopped before '{folder}' held a finished model; continue it with resume=True")
        saved = checkpoint.read(hub.download_reference(str(folder)) if hub.is_reference(folder) else folder)
        config = saved.config
        weights = load_saved_backbone(config["backbone"], folder, backbone)
        model = cls(
            config["method"], weights, seed=config["seed"], device=device, **get_options_for_device(resolve_device(device), config)
        )
        model._restore(saved)
        model._identity = saved.identity
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
        self.table = ClassTable.from_saved(saved.classes, saved.config.get("lessons", ()), saved.records)
        self.calibration = Calibration.from_dict(saved.config.get("calibration", {}))
        self._evidence = load_evidence(saved.records)
        self.history = [dict(record) for record in saved.metrics]
        self.num_calls = saved.config["calls"]
        self.method.removed_state = frozenset(saved.config.get("removed", ()))
        self._rebuild_method(saved.config["task_sizes"], select_by_prefix(saved.tensors, "method."))

    def _restore_stopped_call(self, directory: Path | None, digest: str) -> checkpoint.Saved | None:
        """Restore the checkpoint of a stopped call, if there is one for this model and these images."""
        saved = read_stopped_call(directory, self._config(), digest) if directory is not None else None
        if saved is not None:
            self._restore(saved)
        return saved


def check_local_folder(folder: Path) -> None:
    """Refuse to write a model to the hub, or among photos or other files that are not its own."""
    hub.check_local(folder)
    foreign = find_foreign_file(folder)
    if foreign is not None:
        raise ModelFolderError(f"'{folder}' is not a model but holds other files, such as '{foreign.name}'; choose another folder")


def _rename_arguments(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return arguments of `learn` under their current names, with a warning; an unknown one is a TypeError."""
    for name in arguments:
        if name not in RENAMED_ARGUMENTS:
            raise TypeError(f"ContinualClassifier.learn() got an unexpected keyword argument '{name}'")
        warnings.warn(f"'{name}' of learn is now '{RENAMED_ARGUMENTS[name]}'", DeprecationWarning, stacklevel=3)
    return {RENAMED_ARGUMENTS[name]: value for name, value in arguments.items()}
