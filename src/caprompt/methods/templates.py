"""Methods whose logits are their answer: nothing is mixed or chosen by task, so task weights follow from class probabilities.

Direct      says how logits come about, and how many passes that takes
OwnTaskMethod     is trained on images of any task, further images of known classes among them; the cross entropy is over the
            classes of each image's own task
Plain       a reference without protection of the old, for which that mask is an option, since it decides what a lower bound
            is worth: over all classes seen so far the head forgets at once, masked it forgets slowly
"""

from __future__ import annotations

from abc import abstractmethod

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor

from caprompt.backbones.vit import Stem
from caprompt.methods.base import Method, MethodOutput
from caprompt.methods.options import Options

__all__ = ["Baseline", "BaselineOptions", "DirectMethod", "OwnTaskMethod", "SelectedPromptMethod"]


class DirectMethod(Method):
    """Logits, and that is all."""

    @abstractmethod
    def logits(self, images: Tensor) -> Tensor:
        """The logits of all classes seen: (B, C)."""

    @property
    def passes(self) -> int:
        """Forward passes that logits take."""
        return 1

    @torch.no_grad()
    def predict(self, images: Tensor, true_tasks: Tensor | None = None) -> MethodOutput:
        """The logits; nothing is chosen by task, so `true_tasks` changes nothing."""
        return self.output_from_logits(self.logits(images), self.passes)


class OwnTaskMethod(DirectMethod):
    """Trained on images of any task, each among the classes of its own."""

    trains_on_known_classes = True

    def loss(self, images: Tensor, labels: Tensor) -> dict[str, Tensor]:
        """Cross entropy of each image among the classes of its own task."""
        return {"ce": self.own_task_cross_entropy(self.logits(images), labels)}


class BaselineOptions(Options):
    """The one choice of a plain reference."""

    masked: bool = Field(True, description="cross entropy among the classes of the image's own task only")


class Baseline(OwnTaskMethod):
    """A reference without any protection of the old: task after task is trained on, and that is all."""

    options: BaselineOptions

    def loss(self, images: Tensor, labels: Tensor) -> dict[str, Tensor]:
        """Cross entropy among the classes of each image's task, or over all classes."""
        if self.options.masked:
            return super().loss(images, labels)
        return {"ce": F.cross_entropy(self.logits(images), labels)}


class SelectedPromptMethod(Method):
    """First choose a task, then answer under its prompt. Children say how each is done."""

    @abstractmethod
    def select_task(self, stem: Stem) -> Tensor:
        """The task whose prompt each image gets, from one pass: (B,). Not asked for while there is a single task."""

    @abstractmethod
    def features_under(self, stem: Stem, tasks: Tensor) -> Tensor:
        """Features (B, D) of images, each under the prompt of its task (B,)."""

    @torch.no_grad()
    def predict(self, images: Tensor, true_tasks: Tensor | None = None) -> MethodOutput:
        """A pass that chooses and one that answers; where the task is given, or there is but one, only the latter."""
        stem = self.vit.stem(images)
        tasks, passes = true_tasks, 1
        if tasks is None and len(self.task_sizes) > 1:
            tasks, passes = self.select_task(stem), 2
        elif tasks is None:
            tasks = self.task_of_class.new_zeros(images.shape[0])
        logits = self.head(self.features_under(stem, tasks))
        weights = F.one_hot(tasks, len(self.task_sizes)).to(logits)  # (B, T)
        return MethodOutput(logits, weights, torch.full_like(tasks, passes))
