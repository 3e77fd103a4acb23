"""One training step: on one device, by several processes, or on a CPU by several threads."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from caprompt.errors import InputError
from caprompt.methods.base import Method
from caprompt.utils.communication import ALONE, Communicator, get_communicator
from caprompt.utils.cuda_graphs import capture
from caprompt.utils.threads import count_workers, map_parts, split_evenly, use_threads

__all__ = [
    "SharedTrainingStep",
    "ThreadedTrainingStep",
    "TrainingStep",
    "get_trainable_parameters",
    "make_step",
]


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
        self.update()
        return {name: loss.detach() for name, loss in losses.items()}

    def update(self) -> None:
        """Update the parameters by their gradients."""
        if self.method.options.clip:
            torch.nn.utils.clip_grad_norm_(self.parameters, self.method.options.clip)
        self.optimizer.step()


class DividedTrainingStep(TrainingStep):
    """A step whose batch is divided: the mean of the parts' gradients, weighted by their numbers of images, is the batch's.

    Gradients, losses and that number are one vector.
    """

    def __init__(self, method: Method, optimizer: torch.optim.Optimizer) -> None:
        super().__init__(method, optimizer)
        self.trained: list[nn.Parameter] = []  # that the losses depend on

    def compute_share(self, images: Tensor, labels: Tensor) -> tuple[list[str], Tensor]:
        """Return the names of the losses of a part, and a vector of all gradients, the losses, and 1."""
        losses = self.method.loss(images, labels)
        total = torch.stack(list(losses.values())).sum()
        gradients = torch.autograd.grad(total, self.parameters, allow_unused=True)
        pairs = [pair for pair in zip(self.parameters, gradients, strict=True) if pair[1] is not None]
        self.trained = [parameter for parameter, _ in pairs]
        rows = [gradient.flatten() for _, gradient in pairs]
        values = torch.stack([loss.detach() for loss in losses.values()])
        return list(losses), torch.cat([*rows, values.to(rows[0]), rows[0].new_ones(1)])

    def train_by_total(self, names: list[str], total: Tensor, apply: Callable[[Tensor], None]) -> dict[str, Tensor]:
        """Update by the shares of all parts, each times its number of images, added up; return the losses.

        `apply` is `apply_gradients`, captured or not.
        """
        mean = total / total[-1]
        apply(mean)
        return dict(zip(names, mean[-1 - len(names) : -1], strict=True))

    def apply_gradients(self, vector: Tensor) -> None:
        """Update the parameters by the gradients of the whole batch."""
        self.optimizer.zero_grad()
        sizes = [parameter.numel() for parameter in self.trained]
        for parameter, gradient in zip(self.trained, vector[: sum(sizes)].split(sizes), strict=True):
            parameter.grad = gradient.view_as(parameter)
        self.update()


class SharedTrainingStep(DividedTrainingStep):
    """The same step by several processes: each computes the gradients of its share of a batch, and all apply their mean.

    What comes before and after the exchange is captured separately.
    """

    def __init__(self, method: Method, optimizer: torch.optim.Optimizer, communicator: Communicator) -> None:
        super().__init__(method, optimizer)
        self.communicator = communicator
        captures = method.can_capture_step
        self.compute = capture(self.compute_share, method.device) if captures else self.compute_share
        self.apply = capture(self.apply_gradients, method.device) if captures else self.apply_gradients

    def __call__(self, images: Tensor, labels: Tensor) -> dict[str, Tensor]:
        """Train on this process's share of a batch; return the terms of the loss of the whole batch."""
        names, share = self.compute(images, labels)
        total = share * len(images)
        self.communicator.add_up(total)
        return self.train_by_total(names, total, self.apply)


class ThreadedTrainingStep(DividedTrainingStep):
    """The same step on a CPU by several threads, each of which computes the gradients of its images."""

    def __call__(self, images: Tensor, labels: Tensor) -> dict[str, Tensor]:
        """Train on images (B, 3, S, S) and labels (B,); return the terms of the loss."""
        parts = split_evenly(len(images), count_workers())
        if len(parts) == 1:
            return super().__call__(images, labels)
        shares = map_parts(lambda part: self.compute_share(images[part], labels[part]), parts)
        with use_threads(1):  # so little is left to compute that threads would only wait for each other
            weighted = [share * (part.stop - part.start) for (_, share), part in zip(shares, parts, strict=True)]
            return self.train_by_total(shares[0][0], torch.stack(weighted).sum(dim=0), self.apply_gradients)


def make_step(method: Method, optimizer: torch.optim.Optimizer) -> Callable[[Tensor, Tensor], dict[str, Tensor]]:
    """Return the training step, captured as a CUDA graph or divided among threads where device and method allow it."""
    communicator, indivisible = get_communicator(), method.explain_indivisible()
    if communicator is not ALONE:
        if indivisible is not None and communicator.size > 1:
            raise InputError(f"'{method.name}' cannot be trained by {communicator.size} processes: {indivisible}; use one")
        return SharedTrainingStep(method, optimizer, communicator)
    if method.device.type == "cpu":
        divides = method.can_train_in_threads and indivisible is None and not method.vit.is_compiled
        return ThreadedTrainingStep(method, optimizer) if divides else TrainingStep(method, optimizer)
    step = TrainingStep(method, optimizer)
    return capture(step, method.device) if method.can_capture_step else step


def get_trainable_parameters(method: Method) -> list[nn.Parameter]:
    """Return the parameters that are trained in the current task."""
    return [parameter for parameter in method.parameters() if parameter.requires_grad]
