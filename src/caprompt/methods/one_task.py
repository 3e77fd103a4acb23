"""Methods that see each image under the prompt of one task, chosen for it alone by a pass without prompts."""

from __future__ import annotations

from abc import abstractmethod

import torch
import torch.nn.functional as F
from torch import Tensor

from caprompt.backbones.vit import Stem
from caprompt.methods.base import Answer, Method

__all__ = ["OneTaskMethod"]


class OneTaskMethod(Method):
    """First choose a task, then answer under its prompt. Children say how each is done."""

    @abstractmethod
    def chosen_task(self, stem: Stem) -> Tensor:
        """The task whose prompt each image gets, from one pass: (B,). Not asked for while there is a single task."""

    @abstractmethod
    def features_under(self, stem: Stem, tasks: Tensor) -> Tensor:
        """Features (B, D) of images, each under the prompt of its task (B,)."""

    @torch.no_grad()
    def answer(self, images: Tensor, true_tasks: Tensor | None = None) -> Answer:
        """A pass that chooses and one that answers; where the task is given, or there is but one, only the latter."""
        stem = self.vit.stem(images)
        tasks, passes = true_tasks, 1
        if tasks is None and len(self.task_sizes) > 1:
            tasks, passes = self.chosen_task(stem), 2
        elif tasks is None:
            tasks = self.task_of_class.new_zeros(images.shape[0])
        logits = self.head(self.features_under(stem, tasks))
        weights = F.one_hot(tasks, len(self.task_sizes)).to(logits)  # (B, T)
        return Answer(logits, weights, torch.full_like(tasks, passes))
