"""MoAL: momentum-based analytical learning (Gao et al., CVPR 2025).

    logits = s relu(f(x) P) W

W is RanPAC's ridge regression on a random projection (see `components/ridge.py`). Here the adapter
behind f keeps learning. On the first task it is trained and taken as it is. On every later one only
a moving average of it is taken, from the adapter before the task, updated after every epoch:

    A_mean <- a A_mean + (1 - a) A        and A <- A_mean at the end of the task

The loss is the cross entropy of a cosine head (the proxy) over all classes so far.

The regression still remembers old classes as they were seen by older adapters. "Rumination" adds
them as they are seen now. Class means are mapped by a calibration, which is fitted to the images of
the new task, each seen by the adapter before (u) and after the task (v):

    mu_c <- mu_c + mean(v - u) + (mu_c - mean u) M
    M = argmin sum |v - u - mean(v - u) - (u - mean u) M|^2 + k |M|^2

An old class c borrows the features of the new class n whose mean has the highest cosine with its
own:

    { v - mu_n + mu_c : v a feature of n }

Those, and the features of the new images, that the regression misclassifies are added to its sums.

Differs from the public code in the calibration, a linear map that is trained there for 1,000 epochs
from a random start; a ridge regression on the change has a closed form and is right if nothing
changes. Regression and calibration see images without augmentation. See `docs/methods/moal.md`.

Shapes: n images, C classes, K of them old, D width.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator
from typing import ClassVar

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor, nn

from caprompt.backbones.vit import ViT
from caprompt.methods.base import Batches
from caprompt.methods.components.adapters import Adapter, AdapterOptions
from caprompt.methods.components.heads import CosineHead, LogitScaleOptions, ProxyOptions, cosines
from caprompt.methods.components.ridge import STRENGTHS, RandomRidge, compute_held_out_errors
from caprompt.methods.components.statistics import Statistics
from caprompt.methods.registry import register
from caprompt.methods.templates import DirectMethod

__all__ = ["Moal", "MoalOptions", "borrow_features", "calibrate_means"]

HELD_OUT = 0.1  # fraction of the images that selects k
CHUNK = 256  # features projected at once


class MoalOptions(AdapterOptions, LogitScaleOptions, ProxyOptions):
    """Options of the random projection, the moving average and the rumination."""

    projections: int = Field(10_000, ge=1, description="width of the random projection; the model file grows with its square")
    average: float = Field(0.999, ge=0, le=1, description="a: share of itself that the average adapter keeps in every epoch")
    ruminate: bool = Field(True, description="add features of old classes, borrowed from new ones, to the regression")


@register("moal")
class Moal(DirectMethod):
    """Ridge regression on features whose adapter follows a moving average of its training."""

    summary = "ridge regression on random projections, an adapter that follows slowly, old classes reviewed (CVPR 2025)"
    options_class = MoalOptions
    check_options: ClassVar = {**DirectMethod.check_options, "projections": 100, "bottleneck": 4}
    check_variants: ClassVar = ({"average": 0.5}, {"ruminate": False})
    options: MoalOptions
    head: RandomRidge

    def __init__(self, vit: ViT, options: MoalOptions) -> None:
        super().__init__(vit, options, RandomRidge(vit.config.width, options.projections))
        self.adapter = Adapter(vit.config, options)
        self.proxy = CosineHead(vit.config.width, initial=options.proxy_scale)  # trains the adapter; not used for prediction
        self.statistics = Statistics(vit.config.width)
        for name in ("mean_adapter", "before"):
            self.register_buffer(name, self.flatten_adapter())
        for name in ("steps", "epoch_steps"):
            self.register_buffer(name, torch.zeros((), dtype=torch.long))

    mean_adapter: Tensor  # A_mean, flattened
    before: Tensor  # flattened weights of the adapter that the statistics refer to
    steps: Tensor  # training steps of the call so far; 0 on the first task
    epoch_steps: Tensor  # training steps of one epoch

    @property
    def learning_state(self) -> tuple[str, ...]:
        """The sums of the regression, the class means, and what trains the adapter."""
        return (
            "statistics",
            "proxy",
            *("mean_adapter", "before", "steps", "epoch_steps"),
            *(f"head.{name}" for name in self.head.learning_state),
        )

    def begin_task(self, num_classes: int, generator: torch.Generator) -> None:
        """Add classes everywhere; the adapter is initialized with the first task."""
        super().begin_task(num_classes, generator)
        self.proxy.grow(num_classes, generator)
        self.statistics.grow(num_classes)
        if len(self.task_sizes) == 1:
            self.adapter.reset_parameters(generator)
        self.mean_adapter.copy_(self.flatten_adapter())

    def flatten_adapter(self) -> Tensor:
        """Return a flat copy of the adapter's weights."""
        return nn.utils.parameters_to_vector(self.adapter.parameters()).detach().clone()

    # -- training ----------------------------------------------------------------------------------

    @property
    def trained_head(self) -> nn.Module:
        """The proxy head."""
        return self.proxy

    @property
    def is_averaging(self) -> bool:
        """Whether the current task trains an adapter that earlier classes rely on."""
        return len(self.task_sizes) > 1

    def prepare(self, batches: Batches, generator: torch.Generator) -> None:
        """Count the steps of an epoch, after which the average is updated."""
        if self.is_averaging:
            num_images = sum(len(labels) for _, labels in batches)
            self.epoch_steps.fill_(math.ceil(num_images / self.effort.batch_size))

    def loss(self, images: Tensor, labels: Tensor) -> dict[str, Tensor]:
        """Return the cross entropy of the proxy head over all classes."""
        if self.is_averaging:
            self.update_average()
        return {"ce": F.cross_entropy(self.proxy(self.features(images)), labels)}

    @torch.no_grad()
    def update_average(self) -> None:
        """Before the first step of an epoch, update the average if another epoch has ended.

        Nothing tells a method that an epoch has ended, and a captured step cannot branch, so the
        steps are counted and the average is updated in every step, usually with weight 0.
        """
        has_ended = (self.steps > 0) & (self.steps % self.epoch_steps.clamp_min(1) == 0)
        self.mean_adapter.lerp_(self.flatten_adapter(), has_ended * (1 - self.options.average))
        self.steps += 1

    def take_average(self) -> None:
        """After training, end the last epoch and replace the adapter by its average."""
        if int(self.steps):
            self.mean_adapter.lerp_(self.flatten_adapter(), 1 - self.options.average)
            load_weights(self.adapter, self.mean_adapter)
            self.steps.zero_()

    # -- regression --------------------------------------------------------------------------------

    def features(self, images: Tensor) -> Tensor:
        """Compute f(x): (n, D)."""
        features: Tensor = self.vit(images, self.adapter.branches())
        return features

    def logits(self, images: Tensor) -> Tensor:
        """Compute the scaled outputs of the regression: (n, C)."""
        logits: Tensor = self.options.scale * self.head(self.features(images))
        return logits

    @torch.no_grad()
    def consolidate(self, batches: Batches, generator: torch.Generator) -> None:
        """Take the average adapter, correct old means, fit the regression, and review old classes."""
        self.take_average()
        is_old = self.statistics.count > 0  # (C,)
        has_drifted = bool(is_old.any()) and not torch.equal(self.before, self.flatten_adapter())
        features, labels = self.extract_features(batches)
        if has_drifted:
            previous = copy.deepcopy(self.adapter)
            load_weights(previous, self.before)
            before, _ = self.extract_features(batches, previous)
            self.statistics.mean[is_old] = calibrate_means(before, features, self.statistics.mean[is_old], generator)
        self.before.copy_(self.flatten_adapter())
        self.statistics.observe_batches([(features, labels)])
        self.head.partial_fit(zip(features.split(CHUNK), labels.split(CHUNK), strict=True), generator)
        if has_drifted and self.options.ruminate:
            self.review(features, labels, is_old)

    def extract_features(self, batches: Batches, adapter: Adapter | None = None) -> tuple[Tensor, Tensor]:
        """Return the features (n, D), by default under the current adapter, and labels (n,)."""
        branches = adapter or self.adapter
        parts = [(self.vit(images, branches.branches()), labels) for images, labels in batches]
        features, labels = (torch.cat(column) for column in zip(*parts, strict=True))
        return features, labels

    def review(self, features: Tensor, labels: Tensor, is_old: Tensor) -> None:
        """Add what the regression misclassifies, of new images and of borrowed features, to its sums."""
        ridge = self.head.ridge
        for part, targets in [(features, labels), *borrow_features(features, labels, self.statistics.mean, is_old)]:
            for chunk, own in zip(part.split(CHUNK), targets.split(CHUNK), strict=True):
                is_wrong = self.head(chunk).argmax(dim=1) != own
                ridge.observe(self.head.project(chunk[is_wrong]), own[is_wrong])
        ridge.solve()


def load_weights(adapter: Adapter, weights: Tensor) -> None:
    """Copy flattened weights into an adapter."""
    sizes = [parameter.numel() for parameter in adapter.parameters()]
    for parameter, part in zip(adapter.parameters(), weights.split(sizes), strict=True):
        parameter.data.copy_(part.view_as(parameter))


def calibrate_means(before: Tensor, after: Tensor, means: Tensor, generator: torch.Generator) -> Tensor:
    """Map means (K, D) as a regression maps the features (n, D) of images from before to after.

    The regression is on the change of a feature. With fewer images than `HELD_OUT` can select k
    from, all means change like the mean of the images.
    """
    order = torch.randperm(len(before), generator=generator).to(before.device)
    inputs, changes = before[order].double(), (after - before)[order].double()
    center, shift = inputs.mean(dim=0), changes.mean(dim=0)
    inputs, changes = inputs - center, changes - shift
    count = int(HELD_OUT * len(inputs))
    if not count:
        return (means + shift).to(means)
    errors = compute_held_out_errors(inputs[count:], changes[count:], inputs[:count], changes[:count])
    system = inputs.T @ inputs
    system.diagonal().add_(STRENGTHS[int(errors.argmin())])
    slope: Tensor = torch.linalg.solve(system, inputs.T @ changes)  # M, (D, D)
    return (means + shift + (means - center) @ slope).to(means)


def borrow_features(features: Tensor, labels: Tensor, means: Tensor, is_old: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield features and classes of every old class, borrowed from the most similar new class.

    `features` are (n, D) of classes `labels` (n,), `means` (C, D), and `is_old` (C,).
    """
    present = labels.unique()
    old, new = is_old.nonzero().squeeze(1), present[~is_old[present]]
    if not len(new):
        return
    nearest = new[cosines(means[old], means[new]).argmax(dim=1)]  # (K,)
    for label, donor in zip(old, nearest, strict=True):
        borrowed = features[labels == donor] - means[donor] + means[label]
        yield borrowed, label.expand(len(borrowed))
