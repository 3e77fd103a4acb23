"""Base classes for common kinds of methods.

    DirectMethod          computes logits without selecting a task; task weights follow from the
                          class probabilities
    UntrainedMethod       a DirectMethod without training: class means, or a regression in closed form
    OwnTaskMethod         a DirectMethod trained on images of any task, further images of known
                          classes included, with cross entropy over each image's own task
    Baseline              an OwnTaskMethod without protection against forgetting, where that mask
                          is an option: without it the head forgets at once, with it slowly, so it
                          decides what a lower bound is worth
    SelectedPromptMethod  selects a task for each image, then predicts with that task's prompt

Shapes: B images, C classes, T tasks, D width.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import ClassVar

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor

from caprompt.backbones.vit import Stem
from caprompt.methods.base import Method, MethodOutput
from caprompt.methods.options import Options

__all__ = ["Baseline", "BaselineOptions", "DirectMethod", "OwnTaskMethod", "SelectedPromptMethod", "UntrainedMethod"]


class DirectMethod(Method):
    """A method that computes logits without selecting or mixing by task."""

    @abstractmethod
    def logits(self, images: Tensor) -> Tensor:
        """Return the logits of all classes seen so far: (B, C)."""

    @property
    def passes(self) -> int:
        """Number of forward passes that `logits` takes."""
        return 1

    @torch.no_grad()
    def predict(self, images: Tensor, true_tasks: Tensor | None = None) -> MethodOutput:
        """Predict from the logits; no task is selected, so `true_tasks` has no effect."""
        return self.output_from_logits(self.logits(images), self.passes)


class UntrainedMethod(DirectMethod):
    """A method that only processes the images of a call once, in `consolidate`."""

    @property
    def epochs(self) -> int:
        """Number of training epochs: none, since nothing is trained."""
        return 0

    def loss(self, images: Tensor, labels: Tensor) -> dict[str, Tensor]:
        """Return no loss: nothing is trained."""
        return {}


class OwnTaskMethod(DirectMethod):
    """A method trained with cross entropy over the classes of each image's own task."""

    trains_on_known_classes = True

    def loss(self, images: Tensor, labels: Tensor) -> dict[str, Tensor]:
        """Return the cross entropy over the classes of each image's own task."""
        return {"ce": self.own_task_cross_entropy(self.logits(images), labels)}


class BaselineOptions(Options):
    """Options of a baseline."""

    masked: bool = Field(True, description="compute the cross entropy over the classes of the image's own task only")


class Baseline(OwnTaskMethod):
    """A baseline, trained on one task after another without protection against forgetting."""

    options: BaselineOptions
    check_variants: ClassVar = ({"masked": True}, {"masked": False})

    def loss(self, images: Tensor, labels: Tensor) -> dict[str, Tensor]:
        """Return the cross entropy over each image's own task, or over all classes."""
        if self.options.masked:
            return super().loss(images, labels)
        return {"ce": F.cross_entropy(self.logits(images), labels)}


class SelectedPromptMethod(Method):
    """A method that selects a task for each image, then predicts with that task's prompt."""

    @abstractmethod
    def select_task(self, stem: Stem) -> Tensor:
        """Return the task of each image, from one pass: (B,). Not called for a single task."""

    @abstractmethod
    def extract_features(self, stem: Stem, tasks: Tensor) -> Tensor:
        """Return features (B, D) of images, each with the prompt of its task; `tasks` is (B,)."""

    @torch.no_grad()
    def predict(self, images: Tensor, true_tasks: Tensor | None = None) -> MethodOutput:
        """Predict with one pass to select tasks and one to classify.

        The first one is omitted if the tasks are known or there is only one.
        """
        stem = self.vit.stem(images)
        tasks, passes = true_tasks, 1
        if tasks is None and len(self.task_sizes) > 1:
            tasks, passes = self.select_task(stem), 2
        elif tasks is None:
            tasks = self.task_of_class.new_zeros(images.shape[0])
        logits = self.head(self.extract_features(stem, tasks))
        weights = F.one_hot(tasks, len(self.task_sizes)).to(logits)  # (B, T)
        return MethodOutput(logits, weights, torch.full_like(tasks, passes))
