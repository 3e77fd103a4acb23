"""The data of a report on a taught model: the model, and its predictions for labeled test images."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from caprompt.classifier import ContinualClassifier, LabeledOutput
from caprompt.classifier.unlearned import SKIP, split_learned
from caprompt.data.samples import Samples
from caprompt.data.sources import Source, read_source
from caprompt.experiments.artifacts import FinalPredictions
from caprompt.outputs import Evaluation, compute_probabilities

__all__ = ["ModelRecord", "evaluate_model"]


@dataclass(frozen=True)
class ModelRecord:
    """A taught model and its test."""

    name: str
    model: ContinualClassifier
    samples: Samples  # test images
    evaluation: Evaluation
    predictions: FinalPredictions

    @property
    def tasks(self) -> Sequence[Sequence[str]]:
        """The classes of each task."""
        return self.model.tasks

    @property
    def num_bytes(self) -> int:
        """Size of what the model has learned, without the backbone."""
        return sum(tensor.numel() * tensor.element_size() for tensor in self.model.method.state().values())


def evaluate_model(model: ContinualClassifier, source: Source, name: str, *, skip_bad: bool = False) -> ModelRecord:
    """Test a model on labeled images; those of classes that it has not learned are left out."""
    samples = read_source(source)
    if model.classes:
        samples, _ = split_learned(samples, model.classes, SKIP)
    labeled = model.compute_outputs(samples, skip_bad=skip_bad)  # raises if there are no classes
    return ModelRecord(name, model, labeled.samples, model.score_outputs(labeled), _make_predictions(model, labeled))


def _make_predictions(model: ContinualClassifier, labeled: LabeledOutput) -> FinalPredictions:
    """Return the predictions as a run saves them, with the number of cycles that the model uses."""
    score, predicted = compute_probabilities(labeled.output).float().cpu().max(dim=1)
    answer = predicted.numpy().astype(np.int32)
    return FinalPredictions(
        classes=tuple(model.classes),
        true=labeled.targets.numpy().astype(np.int32),
        answer=answer,
        score=score.nan_to_num(0.0).numpy().astype(np.float32),
        cycles=(0,),
        answers=answer[np.newaxis],
        weights=labeled.output.task_weights.float().cpu().numpy().astype(np.float16)[np.newaxis],
    )
