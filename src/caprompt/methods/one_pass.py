"""Methods that see an image once and put one linear head on its feature: what they share is all but the feature.

Images of any task may be trained on, further images of known classes among them. The cross entropy is over the classes of each
image's own task; for the plain references (`Plain`) that is an option, since it decides what a lower bound is worth: over all
classes seen so far the head forgets at once, masked it forgets slowly.
"""

from __future__ import annotations

from abc import abstractmethod

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor

from caprompt.methods.base import Answer, Method
from caprompt.options import Options

__all__ = ["OnePass", "Plain", "PlainOptions"]


class OnePass(Method):
    """One feature an image, one head, cross entropy."""

    trains_on_known = True

    @abstractmethod
    def features(self, images: Tensor) -> Tensor:
        """The feature of each image: (B, D)."""

    def logits(self, images: Tensor) -> Tensor:
        """One pass: (B, C)."""
        logits: Tensor = self.head(self.features(images))
        return logits

    def loss(self, images: Tensor, labels: Tensor) -> dict[str, Tensor]:
        """Cross entropy of each image among the classes of its own task."""
        return {"ce": self.own_task_cross_entropy(self.logits(images), labels)}

    @torch.no_grad()
    def answer(self, images: Tensor, true_tasks: Tensor | None = None) -> Answer:
        """One pass."""
        return self.answered(self.logits(images), passes=1)


class PlainOptions(Options):
    """The one choice of a plain reference."""

    masked: bool = Field(True, description="cross entropy among the classes of the image's own task only")


class Plain(OnePass):
    """A reference without any protection of the old: task after task is trained on, and that is all."""

    options: PlainOptions

    def loss(self, images: Tensor, labels: Tensor) -> dict[str, Tensor]:
        """Cross entropy among the classes of each image's task, or over all classes."""
        if self.options.masked:
            return super().loss(images, labels)
        return {"ce": F.cross_entropy(self.logits(images), labels)}
