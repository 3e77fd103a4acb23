"""The training loop: optimizer, learning rate of the head, clipping, schedule; a new optimizer for every task.

A callback receives an event for every step and epoch, and the caller may save after each epoch.
Nothing here is random: the batches of an epoch come from the caller.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping
from itertools import chain, islice

import torch
from torch import Tensor, nn

from caprompt.callbacks.events import Callback, EpochEnded, StepEnded, ignore_event
from caprompt.errors import CapromptError, InputError
from caprompt.methods.base import Batches, Method
from caprompt.methods.options import Options
from caprompt.utils.communication import ALONE, Communicator, get_communicator
from caprompt.utils.cuda_graphs import capture
from caprompt.utils.devices import has_triton
from caprompt.utils.optimizers import load_optimizer_state, make_optimizer, set_learning_rates

__all__ = [
    "SharedTrainingStep",
    "TrainingStep",
    "build_optimizer",
    "compute_learning_rate_factor",
    "fit",
    "get_trainable_parameters",
    "is_worth_compiling",
    "make_step",
]

#: Compilation saves about 0.11 ms an image with a ViT-B/16 on an H200 (docs/performance.md); at this number of images, 55 s.
MIN_COMPILED_IMAGES = 500_000


class TrainingStep:
    """One step: the losses of a batch, their gradients, clipped, and the optimizer's update."""

    def __init__(self, method: Method, optimizer: torch.optim.Optimizer) -> None:
        self.method = method
        self.optimizer = optimizer
        self.parameters = get_trainable_parameters(method)

    def __call__(self, images: Tensor, labels: Tensor) -> dict[str, Tensor]:
        """Train on images (B, 3, S, S) and labels (B,); return the terms of the loss."""
        losses = self.method.loss(images, labels)
        self.optimizer.zero_grad()
        torch.stack(list(losses.values())).sum().backward()
        if self.method.options.clip:
            torch.nn.utils.clip_grad_norm_(self.parameters, self.method.options.clip)
        self.optimizer.step()
        return {name: loss.detach() for name, loss in losses.items()}


class SharedTrainingStep(TrainingStep):
    """The same step by several processes: each computes the gradients of its share of a batch, and all apply their mean.

    Weighted by the number of images, that mean is the gradient of the whole batch. Gradients, losses and that number travel as
    one vector. What comes before and after the exchange is captured separately.
    """

    def __init__(self, method: Method, optimizer: torch.optim.Optimizer, communicator: Communicator) -> None:
        super().__init__(method, optimizer)
        self.communicator = communicator
        captures = method.can_capture_step
        self.compute = capture(self.compute_share, method.device) if captures else self.compute_share
        self.update = capture(self.apply_gradients, method.device) if captures else self.apply_gradients
        self.trained: list[nn.Parameter] = []  # that the losses depend on

    def __call__(self, images: Tensor, labels: Tensor) -> dict[str, Tensor]:
        """Train on this process's share of a batch; return the terms of the loss of the whole batch."""
        names, share = self.compute(images, labels)
        total = share * len(images)
        self.communicator.add_up(total)
        mean = total / total[-1]
        self.update(mean)
        return dict(zip(names, mean[-1 - len(names) : -1], strict=True))

    def compute_share(self, images: Tensor, labels: Tensor) -> tuple[list[str], Tensor]:
        """Return the names of the losses, and a vector of all gradients, the losses, and 1."""
        losses = self.method.loss(images, labels)
        self.optimizer.zero_grad()
        torch.stack(list(losses.values())).sum().backward()
        self.trained = [parameter for parameter in self.parameters if parameter.grad is not None]
        gradients = [parameter.grad.flatten() for parameter in self.trained if parameter.grad is not None]
        values = torch.stack([loss.detach() for loss in losses.values()])
        return list(losses), torch.cat([*gradients, values.to(gradients[0]), gradients[0].new_ones(1)])

    def apply_gradients(self, vector: Tensor) -> None:
        """Update the parameters by the gradients of the whole batch."""
        sizes = [parameter.numel() for parameter in self.trained]
        for parameter, gradient in zip(self.trained, vector[: sum(sizes)].split(sizes), strict=True):
            parameter.grad = gradient.view_as(parameter)
        if self.method.options.clip:
            torch.nn.utils.clip_grad_norm_(self.parameters, self.method.options.clip)
        self.optimizer.step()


def is_worth_compiling(num_images: int, device: torch.device) -> bool:
    """Return whether a training on that many images, each epoch's counted, is shorter with torch.compile, compilation included.

    >>> is_worth_compiling(10**9, torch.device("cpu"))
    False
    """
    return num_images >= MIN_COMPILED_IMAGES and has_triton(device)  # which the compiled code is written in


def make_step(method: Method, optimizer: torch.optim.Optimizer) -> Callable[[Tensor, Tensor], dict[str, Tensor]]:
    """Return the training step, captured as a CUDA graph where device and method allow it."""
    communicator = get_communicator()
    if communicator is not ALONE:
        reason = method.explain_indivisible()
        if reason is not None and communicator.size > 1:
            raise InputError(f"'{method.name}' cannot be trained by {communicator.size} processes: {reason}; use one")
        return SharedTrainingStep(method, optimizer, communicator)
    step = TrainingStep(method, optimizer)
    return capture(step, method.device) if method.can_capture_step else step


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


def get_trainable_parameters(method: Method) -> list[nn.Parameter]:
    """Return the parameters that are trained in the current task."""
    return [parameter for parameter in method.parameters() if parameter.requires_grad]


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
