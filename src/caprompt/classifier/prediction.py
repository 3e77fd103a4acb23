"""How a model predicts: classes of images, accuracies of labeled images, and calibrated probabilities."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from math import isfinite
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from caprompt import protocols
from caprompt.calibration import MIN_IMAGES, Calibration, fit_calibration, make_evidence
from caprompt.classifier.explanation import COPIES, Explanation, explain
from caprompt.classifier.state import ModelState
from caprompt.classifier.unlearned import SKIP, check_choice, make_unlearned_error, split_learned
from caprompt.data.labels import Label, Names
from caprompt.data.samples import Samples
from caprompt.data.sources import Source, explain_without_skipping, read_images, read_source
from caprompt.data.validation import check_label_conflicts, explain_unreadable, validate_images
from caprompt.engine.inference import choose_batch_size, join_outputs, predict_samples
from caprompt.engine.inputs import InputPipeline
from caprompt.errors import CapromptError, InputError, OptionError
from caprompt.methods.base import MethodOutput
from caprompt.methods.components.shared_rows import SharedRows
from caprompt.outputs import (
    Evaluation,
    Prediction,
    compute_probabilities,
    make_evaluation,
    make_predictions,
    make_unknown_score,
    map_to_tasks,
)
from caprompt.utils.communication import ALONE, Communicator, deal_batches

__all__ = ["FALSE_ALARMS", "LabeledOutput", "PredictingModel"]

FALSE_ALARMS = 0.05  # share of images of learned classes that may be marked as unknown


@dataclass(frozen=True)
class LabeledOutput:
    """The raw output of a model for N labeled images, in their order, and what is needed to score it."""

    samples: Samples
    targets: Tensor  # (N,), indices into the model's classes, on the CPU
    output: MethodOutput  # N rows
    protocol: str
    seconds: float  # that prediction took


class PredictingModel(ModelState):
    """A model that predicts, and is tested and calibrated by labeled images."""

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
        threshold = self.calibration.get_threshold(false_alarms)
        mass = None if coverage is None else self.calibration.get_mass(coverage)
        predictions: list[Prediction] = []
        previous: Iterator[Prediction] = iter(())
        for output in self._iter_outputs(images, batch_size, options):
            started = make_predictions(output, self.labels, top, mass, threshold)
            predictions.extend(previous)  # while a GPU computes this batch
            previous = started
        predictions.extend(previous)
        _require_finite(all(isfinite(prediction.score) for prediction in predictions))  # NaN would be the highest
        return predictions

    def predict_proba(self, images: Any, *, batch_size: int | None = None, **options: Any) -> NDArray[np.float32]:
        """Return the probability of each class for N images, in the order of `classes`: (N, C)."""
        output = self._predict_images(images, batch_size, options)
        if output is None:
            return np.zeros((0, len(self.classes)), dtype=np.float32)
        probabilities = compute_probabilities(output).float().cpu().numpy()
        _require_finite(bool(np.isfinite(probabilities).all()))
        return probabilities

    def _predict_images(self, images: Any, batch_size: int | None, options: Mapping[str, Any]) -> MethodOutput | None:
        """Return the output for images, or None if there are none."""
        outputs = list(self._iter_outputs(images, batch_size, options))
        return join_outputs(outputs) if outputs else None

    def _iter_outputs(self, images: Any, batch_size: int | None, options: Mapping[str, Any]) -> Iterator[MethodOutput]:
        """Yield the output for each batch of images. A GPU may still be computing it."""
        self._require_classes()
        inputs = read_images(images)
        if not inputs:
            return
        pipeline = InputPipeline(self.backbone, self.device, cache_bytes=0)  # each image is read once
        size = choose_batch_size(len(inputs), batch_size, self.device)
        with self.override_options(options), explain_without_skipping():
            predictor = self._predictors.get(self.method, size)
            for batch in pipeline.eval_images(inputs, self.method.input_options, size, short_ends=predictor.has_short_batches):
                yield self.convert_output(predictor(batch))

    def explain(
        self, image: Any, *, against: Label | None = None, copies: int = COPIES, batch_size: int | None = None, **options: Any
    ) -> Explanation:
        """Explain the prediction for one image (see `predict_one`): what spoke for it, against the runner-up or another class.

        The heat map comes from `copies` of the image, each without some of its patches (docs/explain.md). `options` override
        those of the method that concern prediction.
        """
        return explain(self, image, against=against, copies=copies, batch_size=batch_size, options=options)

    # -- labeled images --------------------------------------------------------------------------------------------------------

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
        communicator: Communicator = ALONE,
        **options: Any,
    ) -> LabeledOutput:
        """Return the raw output for labeled images: logits of every class, task weights and forward passes of each image.

        Of several processes, each predicts its share of the batches, and all of them return the whole output.
        """
        pipeline = InputPipeline(self.backbone, self.device)
        # On a GPU, images are decoded while others are predicted, and once; so unreadable ones must end the call.
        is_single_pass = pipeline.batched and not skip_bad and communicator.size == 1
        if is_single_pass:
            pipeline.cache.budget_bytes = 0
        samples, targets = self.read_labeled(source, pipeline, skip_bad, communicator, decode=not is_single_pass)
        size = choose_batch_size(len(samples), batch_size, self.device)
        with self.override_options(options), explain_unreadable(samples) if is_single_pass else nullcontext():
            start_time = time.perf_counter()
            tasks = self.method.task_of_class[self._outputs(samples)].tolist()
            has_share = len(samples) > size * (communicator.size - 1)  # so that every process gets a batch at least
            if communicator.size > 1 and has_share and not protocols.is_released(self.method.options):
                output = self._predict_share(pipeline, samples, size, tasks, give_task, communicator)
            else:
                output = self._predict_samples(pipeline, samples, size, tasks=tasks, give_task=give_task)
            if is_single_pass and not samples.published:
                check_label_conflicts(samples, pipeline.cache.content_keys)  # while a GPU computes
            seconds = time.perf_counter() - start_time
        return LabeledOutput(
            samples, torch.tensor(targets), output, protocols.describe_protocol(self.method.options, give_task), seconds
        )

    def _predict_share(
        self,
        pipeline: InputPipeline,
        samples: Samples,
        size: int,
        tasks: Sequence[int],
        give_task: bool,
        communicator: Communicator,
    ) -> MethodOutput:
        """Predict this process's share of the batches, and return the output of all processes in the order of the samples."""
        ((positions, _),) = deal_batches([(list(range(len(samples))), size)], communicator)
        own_tasks = [tasks[position] for position in positions]
        output = self._predict_samples(pipeline, samples.select(positions), size, tasks=own_tasks, give_task=give_task)
        sizes = [len(positions[start : start + size]) for start in range(0, len(positions), size)]
        shared, chosen = SharedRows(sizes, communicator), torch.arange(len(samples))
        return MethodOutput(*shared.gather([output.logits, output.task_weights, output.passes], chosen))

    def _predict_samples(self, pipeline: InputPipeline, samples: Samples, size: int, **tasks: Any) -> MethodOutput:
        """Run the method over samples and return its output, with a calibrated logit per class name."""
        predictor, options = self._predictors.get(self.method, size), self.method.input_options
        output = predict_samples(predictor, pipeline, samples, options, size, short_ends=predictor.has_short_batches, **tasks)
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
        self.calibration, self.evidence = fit_calibration([evidence])
        self.table.lessons.append({"kind": "calibrate", **self.describe_lesson(), "images": len(labeled.targets)})
        return self.calibration

    def score(self, source: Any, labels: Any = None, **arguments: Any) -> float:
        """Return the accuracy on a source, or on images and their labels, as a fraction."""
        return self.evaluate(source if labels is None else (source, labels), **arguments).accuracy / 100

    def score_outputs(self, labeled: LabeledOutput, tasks: Sequence[Sequence[str]] | None = None) -> Evaluation:
        """Return the accuracies behind raw outputs, by task or by other groups of classes."""
        samples = labeled.samples
        return make_evaluation(
            labeled.output, labeled.targets, self.classes, tasks or self.tasks, samples.skipped, labeled.protocol, samples.images
        )

    def read_labeled(
        self, source: Source, pipeline: InputPipeline, skip_bad: bool, communicator: Communicator = ALONE, decode: bool = True
    ) -> tuple[Samples, list[int]]:
        """Return images to test with and the index of each one's class; every class must have been learned.

        Without `decode`, the images are not read yet, and not checked.
        """
        self._require_classes()
        samples = read_source(source)
        if decode:
            samples = validate_images(samples, pipeline.cache, skip_bad, communicator=communicator)
        for name in samples.classes:
            if name not in self.classes:
                raise make_unlearned_error(name, self.classes)
        return samples, self._targets(samples)


def _require_finite(are_finite: bool) -> None:
    """Raise for a model whose scores are not numbers."""
    if not are_finite:
        raise CapromptError("the scores of this model are not finite; undo its last lesson, or restore it from a backup")
