"""The loop, one screen of it: an optimiser, a head rate, clipping, a schedule, a fresh optimiser for every task.

The caller hears of every step and epoch through `listen`, and gets the chance to `save` after each epoch. Nothing here is random:
the batches of an epoch are the caller's.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from caprompt.errors import CapromptError
from caprompt.events import EpochEnded, Listener, StepTaken, silent
from caprompt.methods.base import Batches, Method
from caprompt.options import Options

__all__ = ["fit", "load_optimizer", "optimizer_state", "rate_factor"]


def fit(
    method: Method,
    batches: Callable[[int], Batches],
    *,
    start: int = 0,
    optimizer_tensors: Mapping[str, Tensor] | None = None,
    listen: Listener = silent,
    save: Callable[[EpochEnded, torch.optim.Optimizer], None] = lambda epoch, optimizer: None,
) -> None:
    """Train a method on one task; `start` and `optimizer_tensors` continue after that many finished epochs."""
    options, epochs, device = method.options, method.epochs, method.head.weight.device
    optimizer = make_optimizer(method)
    if optimizer_tensors:
        load_optimizer(optimizer, optimizer_tensors)
    for epoch in range(start, epochs):
        began, images_seen = time.perf_counter(), 0
        sums: dict[str, Tensor] = {}
        set_rate(optimizer, options, epoch, epochs)
        for images, labels in batches(epoch):
            losses = method.loss(images.to(device), labels.to(device))
            optimizer.zero_grad()
            torch.stack(list(losses.values())).sum().backward()
            if options.clip:
                torch.nn.utils.clip_grad_norm_(trainable(method), options.clip)
            optimizer.step()
            images_seen += images.shape[0]
            parts = {name: loss.detach() for name, loss in losses.items()}
            sums = {name: sums.get(name, 0) + part * images.shape[0] for name, part in parts.items()}
            listen(StepTaken(epoch, images.shape[0], parts))
        means = {name: float(total) / images_seen for name, total in sums.items()}
        seconds = time.perf_counter() - began
        if not all(math.isfinite(mean) for mean in means.values()):
            raise CapromptError(f"the loss is no longer finite after epoch {epoch + 1}; lower learning_rate")
        ended = EpochEnded(epoch, epochs, means, images_seen, seconds)
        save(ended, optimizer)
        listen(ended)
    optimizer.zero_grad()  # what a task froze should not carry its last gradient along


def trainable(method: Method) -> list[torch.nn.Parameter]:
    """The parameters that learn in the current task."""
    return [parameter for parameter in method.parameters() if parameter.requires_grad]


def make_optimizer(method: Method) -> torch.optim.Optimizer:
    """One group for the head and one for all else that learns; `base` is a group's rate before the schedule."""
    options, head = method.options, set(method.head.parameters())
    learning = trainable(method)
    groups = [
        {"params": [parameter for parameter in learning if parameter not in head], "base": options.learning_rate},
        {"params": [parameter for parameter in learning if parameter in head], "base": options.learning_rate * options.head_rate},
    ]
    chosen = [group for group in groups if group["params"]]
    if options.optimizer == "sgd":
        return torch.optim.SGD(chosen, options.learning_rate, momentum=options.momentum, weight_decay=options.weight_decay)
    kind = torch.optim.AdamW if options.optimizer == "adamw" else torch.optim.Adam
    return kind(chosen, options.learning_rate, weight_decay=options.weight_decay)


def set_rate(optimizer: torch.optim.Optimizer, options: Options, epoch: int, epochs: int) -> None:
    """Put every group's rate where the schedule has it in this epoch."""
    for group in optimizer.param_groups:
        group["lr"] = group["base"] * rate_factor(options, epoch, epochs)


def rate_factor(options: Options, epoch: int, epochs: int) -> float:
    """The learning rate of an epoch among `epochs`, relative to the first one's.

    >>> [round(rate_factor(Options(schedule="cosine"), epoch, 4), 2) for epoch in range(4)]
    [1.0, 0.85, 0.5, 0.15]
    >>> [rate_factor(Options(schedule="step", step_at=0.6), epoch, 50) for epoch in (29, 30)]
    [1.0, 0.1]
    """
    if options.schedule == "cosine":
        return (1 + math.cos(math.pi * epoch / epochs)) / 2
    if options.schedule == "step" and epoch >= round(options.step_at * epochs):
        return 0.1
    return 1.0


def optimizer_state(optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """The optimiser's moments as named tensors, for a checkpoint."""
    state = optimizer.state_dict()["state"]
    return {f"{index}.{name}": tensor for index, entry in state.items() for name, tensor in entry.items()}


def load_optimizer(optimizer: torch.optim.Optimizer, tensors: Mapping[str, Tensor]) -> None:
    """Take over moments that `optimizer_state` gave."""
    state: dict[int, dict[str, Tensor]] = {}
    for key, tensor in tensors.items():
        index, name = key.split(".", 1)
        state.setdefault(int(index), {})[name] = tensor
    optimizer.load_state_dict({"state": state, "param_groups": optimizer.state_dict()["param_groups"]})
