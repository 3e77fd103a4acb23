"""One training step: the losses of a batch, their gradients, clipped, and the optimiser's move."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from caprompt.methods.base import Method
from caprompt.utils.cuda_graphs import recorded
from caprompt.utils.optimizers import trainable

__all__ = ["Step", "make_step"]


class Step:
    """A function of images (B, 3, S, S) and labels (B,) that changes the method; it returns the parts of the loss."""

    def __init__(self, method: Method, optimizer: torch.optim.Optimizer) -> None:
        self.method = method
        self.optimizer = optimizer
        self.parameters = trainable(method)

    def __call__(self, images: Tensor, labels: Tensor) -> dict[str, Tensor]:
        losses = self.method.loss(images, labels)
        self.optimizer.zero_grad()
        torch.stack(list(losses.values())).sum().backward()
        if self.method.options.clip:
            torch.nn.utils.clip_grad_norm_(self.parameters, self.method.options.clip)
        self.optimizer.step()
        return {name: loss.detach() for name, loss in losses.items()}


def make_step(method: Method, optimizer: torch.optim.Optimizer) -> Callable[[Tensor, Tensor], dict[str, Tensor]]:
    """The step, recorded on a GPU where the method allows it."""
    step = Step(method, optimizer)
    return recorded(step, method.device) if method.replayable else step
