"""The loop, one screen of it: an optimiser, a head rate, clipping, a schedule, a fresh optimiser for every task.

The caller hears of every step and epoch through `listen`, and gets the chance to `save` after each epoch. Nothing here is random:
the batches of an epoch are the caller's.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping

import torch
from torch import Tensor, nn

from caprompt.callbacks.events import Callback, EpochEnded, StepEnded, ignore_event
from caprompt.errors import CapromptError
from caprompt.methods.base import Batches, Method
from caprompt.methods.options import Options
from caprompt.utils import optimizers
from caprompt.utils.cuda_graphs import capture
from caprompt.utils.optimizers import make_optimizer

__all__ = ["TrainingStep", "build_optimizer", "fit", "learning_rate_factor", "make_step", "trainable_parameters"]


class TrainingStep:
    """A function of images (B, 3, S, S) and labels (B,) that changes the method; it returns the parts of the loss."""

    def __init__(self, method: Method, optimizer: torch.optim.Optimizer) -> None:
        self.method = method
        self.optimizer = optimizer
        self.parameters = trainable_parameters(method)

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
    step = TrainingStep(method, optimizer)
    return capture(step, method.device) if method.can_capture_step else step


def fit(
    method: Method,
    batches: Callable[[int], Batches],
    *,
    start: int = 0,
    optimizer_tensors: Mapping[str, Tensor] | None = None,
    listen: Callback = ignore_event,
    save: Callable[[EpochEnded, torch.optim.Optimizer], None] = lambda epoch, optimizer: None,
) -> None:
    """Train a method on one task; `start` and `optimizer_tensors` continue after that many finished epochs."""
    options, epochs, device = method.options, method.epochs, method.device
    if not epochs:
        return  # nothing is trained in this task, so there may be nothing to optimise
    optimizer = build_optimizer(method)
    if optimizer_tensors:
        optimizers.load_optimizer_state(optimizer, optimizer_tensors)
    step = make_step(method, optimizer)
    for epoch in range(start, epochs):
        began, images_seen = time.perf_counter(), 0
        sums: dict[str, Tensor] = {}
        optimizers.set_learning_rates(optimizer, learning_rate_factor(options, epoch, epochs))
        for images, labels in batches(epoch):
            parts = step(images.to(device), labels.to(device))
            images_seen += images.shape[0]
            sums = {name: sums.get(name, 0) + part * images.shape[0] for name, part in parts.items()}
            listen(StepEnded(epoch, images.shape[0], parts))
        means = {name: float(total) / images_seen for name, total in sums.items()}
        seconds = time.perf_counter() - began
        if not all(math.isfinite(mean) for mean in means.values()):
            raise CapromptError(f"the loss is no longer finite after epoch {epoch + 1}; lower learning_rate")
        ended = EpochEnded(epoch, epochs, means, images_seen, seconds)
        save(ended, optimizer)
        listen(ended)
    optimizer.zero_grad()  # what a task froze should not carry its last gradient along


def learning_rate_factor(options: Options, epoch: int, epochs: int) -> float:
    """The learning rate of an epoch among `epochs`, relative to the first one's.

    >>> [round(learning_rate_factor(Options(schedule="cosine"), epoch, 4), 2) for epoch in range(4)]
    [1.0, 0.85, 0.5, 0.15]
    >>> [learning_rate_factor(Options(schedule="step", step_at=0.6), epoch, 50) for epoch in (29, 30)]
    [1.0, 0.1]
    """
    if options.schedule == "cosine":
        return (1 + math.cos(math.pi * epoch / epochs)) / 2
    if options.schedule == "step" and epoch >= round(options.step_at * epochs):
        return 0.1
    return 1.0


def trainable_parameters(method: Method) -> list[nn.Parameter]:
    """The parameters that learn in the current task."""
    return [parameter for parameter in method.parameters() if parameter.requires_grad]


def build_optimizer(method: Method) -> torch.optim.Optimizer:
    """The optimiser of one task: a group for the head and one for all else that learns."""
    options, head, learning = method.options, set(method.trained_head.parameters()), trainable_parameters(method)
    groups = [
        ([parameter for parameter in learning if parameter not in head], options.learning_rate),
        ([parameter for parameter in learning if parameter in head], options.learning_rate * options.head_rate),
    ]
    return make_optimizer(options.optimizer, groups, momentum=options.momentum, weight_decay=options.weight_decay)
