"""The training loop: optimizer, learning rate of the head, schedule; a new optimizer for every task.

A callback receives an event for every step and epoch, and the caller may save after each epoch.
Nothing here is random: the batches of an epoch come from the caller.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping
from itertools import chain, islice

import torch
from torch import Tensor

from caprompt.callbacks.events import Callback, EpochEnded, StepEnded, ignore_event
from caprompt.engine.training_step import get_trainable_parameters, make_step
from caprompt.errors import CapromptError
from caprompt.methods.base import Batches, Method
from caprompt.methods.options import Options
from caprompt.utils.communication import get_communicator
from caprompt.utils.devices import has_triton
from caprompt.utils.optimizers import load_optimizer_state, make_optimizer, set_learning_rates

__all__ = ["build_optimizer", "compute_learning_rate_factor", "fit", "is_worth_compiling"]

#: Compilation saves about 0.11 ms an image with a ViT-B/16 on an H200 (docs/performance.md); at this number of images, 55 s.
MIN_COMPILED_IMAGES = 500_000


def is_worth_compiling(num_images: int, device: torch.device) -> bool:
    """Return whether a training on that many images, each epoch's counted, is shorter with torch.compile, compilation included.

    >>> is_worth_compiling(10**9, torch.device("cpu"))
    False
    """
    return num_images >= MIN_COMPILED_IMAGES and has_triton(device)  # which the compiled code is written in


def fit(
    method: Method,
    batches: Callable[[int], Batches],
    *,
    start: int = 0,
    optimizer_tensors: Mapping[str, Tensor] | None = None,
    callback: Callback = ignore_event,
    save: Callable[[EpochEnded, torch.optim.Optimizer], None] = lambda epoch, optimizer: None,
    num_images: int | None = None,
) -> None:
    """Train a method on one task; `start` and `optimizer_tensors` continue after that many finished epochs.

    With several processes, `num_images` is the number of images of an epoch, of which the batches are this process's share.
    """
    options, epochs, device = method.options, method.epochs, method.device
    if not epochs:
        return  # nothing is trained in this task, so there may be nothing to optimize
    optimizer = build_optimizer(method)
    if optimizer_tensors:
        load_optimizer_state(optimizer, optimizer_tensors)
    step = make_step(method, optimizer)
    following = _start(batches(start)) if start < epochs else iter(())
    for epoch in range(start, epochs):
        start_time, done = time.perf_counter(), 0
        sums: dict[str, Tensor] = {}
        set_learning_rates(optimizer, compute_learning_rate_factor(options, epoch, epochs))
        for images, labels in following:
            losses = step(images.to(device), labels.to(device))
            count = images.shape[0] if num_images is None else min(method.effort.batch_size, num_images - done)
            done += count
            sums = {name: sums.get(name, 0) + loss * count for name, loss in losses.items()}
            callback(StepEnded(epoch, count, losses))
        if epoch + 1 < epochs:
            following = _start(batches(epoch + 1))  # before the next line waits for the GPU
        means = {name: float(total) / done for name, total in sums.items()}
        seconds = time.perf_counter() - start_time
        if not all(math.isfinite(mean) for mean in means.values()):
            raise CapromptError(f"the loss is no longer finite after epoch {epoch + 1}; lower learning_rate")
        ended = EpochEnded(epoch, epochs, means, done, seconds)
        save(ended, optimizer)
        callback(ended)
    for parameter in get_trainable_parameters(method):
        get_communicator().copy_from_first(parameter.data)  # processes on unlike machines may have drifted apart
    optimizer.zero_grad()  # parameters that the task froze should not carry their last gradient along


def _start(batches: Batches) -> Iterator[tuple[Tensor, Tensor]]:
    """Return an iterator over batches, the first of which is prepared at once."""
    iterator = iter(batches)
    return chain(list(islice(iterator, 1)), iterator)


def build_optimizer(method: Method) -> torch.optim.Optimizer:
    """Return the optimizer of one task: a parameter group for the head and one for everything else that is trained."""
    options, head, trained = method.options, set(method.trained_head.parameters()), get_trainable_parameters(method)
    rate = method.effort.learning_rate
    groups = [
        ([parameter for parameter in trained if parameter not in head], rate),
        ([parameter for parameter in trained if parameter in head], rate * options.head_rate),
    ]
    return make_optimizer(options.optimizer, groups, momentum=options.momentum, weight_decay=options.weight_decay)


def compute_learning_rate_factor(options: Options, epoch: int, epochs: int) -> float:
    """Return the learning rate of an epoch among `epochs`, relative to the first one's.

    >>> [round(compute_learning_rate_factor(Options(schedule="cosine"), epoch, 4), 2) for epoch in range(4)]
    [1.0, 0.85, 0.5, 0.15]
    >>> [round(compute_learning_rate_factor(Options(schedule="quarter-cosine"), epoch, 4), 2) for epoch in range(4)]
    [1.0, 0.87, 0.51, 0.02]
    >>> [compute_learning_rate_factor(Options(schedule="step", step_at=0.6), epoch, 50) for epoch in (29, 30)]
    [1.0, 0.1]
    """
    if options.schedule == "cosine":
        return (1 + math.cos(math.pi * epoch / epochs)) / 2
    if options.schedule == "quarter-cosine":
        return math.cos(99 * math.pi * epoch / (200 * max(epochs - 1, 1)))
    if options.schedule == "step" and epoch >= round(options.step_at * epochs):
        return 0.1
    return 1.0
