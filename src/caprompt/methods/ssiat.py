"""SSIAT: a shared adapter, drift-corrected statistics (Tan et al., CVPR 2024, arXiv:2403.19979).

The adapter and a cosine head are trained on every task in turn, without any constraint, on

    -log softmax_y( s (cos(f(x), w_c) - m [c = y]) )        among the classes of the task.

This changes the features of old classes, too. The drift is estimated from the images of the current
task, each seen by the adapter before (a) and after training on the task (b): the mean of an old
class is assumed to move like the images that used to be near it,

    mu_c += sum_i w_i (b_i - a_i) / sum_i w_i
    w_i = exp(-|a_i - mu_c|^2 / (2 (k r_c)^2)) + 1e-5

where r_c^2 is the mean of |a_i - mu_c|^2. Then the whole head is trained on features sampled from a
Gaussian per class, where the mean of a class of task i among T is multiplied by 0.9 + 0.1 i / T.

Shapes: n images, C classes, K of them old, D width.
"""

from __future__ import annotations

import copy
import math
from typing import ClassVar

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor, nn

from caprompt.backbones.vit import ViT
from caprompt.methods.base import Batches
from caprompt.methods.components import alignment
from caprompt.methods.components.adapters import Adapter, AdapterOptions
from caprompt.methods.components.heads import CosineHead
from caprompt.methods.registry import register
from caprompt.methods.templates import DirectMethod

__all__ = ["Ssiat", "SsiatOptions", "estimate_drift"]

FLOOR = 1e-5  # smallest weight of an image, however far it is from the mean


class SsiatOptions(alignment.ReplayOptions, AdapterOptions):
    """Options of the classifier loss, the drift estimate and the alignment."""

    scale: float = Field(20.0, gt=0, description="s: factor from cosines to logits")
    margin: float = Field(0.0, ge=0, description="m: margin subtracted from the cosine of the true class in training")
    later_share: float = Field(0.5, gt=0, le=1, description="epochs of tasks after the first, as a fraction of epochs")
    drift_width: float = Field(
        0.5, gt=0, description="k: kernel width of the drift estimate, relative to the RMS distance of the images from a class mean"
    )
    align_epochs: int = Field(5, ge=0, description="epochs of classifier alignment after each task; 0 for none")
    align_rate: float = Field(0.01, gt=0, description="learning rate of classifier alignment (SGD, momentum 0.9, cosine schedule)")
    align_draws: int = Field(11, ge=1, description="features sampled per class and alignment epoch, in multiples of batch_size")


@register("ssiat")
class Ssiat(DirectMethod):
    """One adapter for all tasks; class statistics are corrected for the feature drift it causes."""

    summary = "one shared adapter, class statistics corrected for its drift, unified cosine head (CVPR 2024)"
    options_class = SsiatOptions
    can_train_in_threads = True
    check_options: ClassVar = {**DirectMethod.check_options, "align_epochs": 3, "bottleneck": 4}
    check_variants: ClassVar = ({"margin": 0.2},)
    options: SsiatOptions
    head: CosineHead

    def __init__(self, vit: ViT, options: SsiatOptions) -> None:
        super().__init__(vit, options, CosineHead(vit.config.width, options.scale))
        self.adapter = Adapter(vit.config, options)
        self.register_buffer("before", self.flatten_adapter())
        self.statistics = alignment.build_statistics(options, vit.config.width)

    before: Tensor  # flattened weights of the adapter that the statistics refer to

    @property
    def epochs(self) -> int:
        """Number of training epochs, smaller after the first task."""
        return self.effort.epochs if len(self.task_sizes) <= 1 else math.ceil(self.options.later_share * self.effort.epochs)

    @property
    def learning_state(self) -> tuple[str, ...]:
        """The class statistics, and the adapter that they refer to."""
        return ("statistics", "before")

    def begin_task(self, num_classes: int, generator: torch.Generator) -> None:
        """Add head rows and statistics; the adapter is initialized with the first task."""
        super().begin_task(num_classes, generator)
        self.statistics.grow(num_classes)
        if len(self.task_sizes) == 1:
            self.adapter.reset_parameters(generator)

    def flatten_adapter(self) -> Tensor:
        """Return a flat copy of the adapter's weights."""
        return nn.utils.parameters_to_vector(self.adapter.parameters()).detach().clone()

    def loss(self, images: Tensor, labels: Tensor) -> dict[str, Tensor]:
        """Return the cross entropy of scaled cosines among the task's classes, with a margin."""
        logits = self.logits(images)
        if self.options.margin:
            logits = logits - self.options.scale * self.options.margin * F.one_hot(labels, self.num_classes)
        return {"ce": self.masked_cross_entropy(logits, labels)}

    @torch.no_grad()
    def consolidate(self, batches: Batches, generator: torch.Generator) -> None:
        """Correct old means for the drift, add the new images, and align the head."""
        has_statistics = self.statistics.count > 0  # (C,)
        pairs, labels = self.compute_paired_features(batches)
        if has_statistics.any():
            self.statistics.mean[has_statistics] += estimate_drift(
                *pairs, self.statistics.mean[has_statistics], self.options.drift_width
            )
        self.before = self.flatten_adapter()
        self.statistics.observe_batches([(pairs[1], labels)])
        if has_statistics.any():
            with torch.enable_grad():
                sample = alignment.make_shrunk_sampler(self.statistics, self.task_of_class)
                alignment.align_head(self.head, self.statistics, self.options, self.num_classes, generator, sample)

    def compute_paired_features(self, batches: Batches) -> tuple[tuple[Tensor, Tensor], Tensor]:
        """Return features under the previous and the current adapter, (n, D), and labels (n,)."""
        previous = copy.deepcopy(self.adapter)
        nn.utils.vector_to_parameters(self.before, previous.parameters())
        parts = []
        for images, labels in batches:
            stem = self.vit.stem(images)
            parts.append((self.vit(stem, previous.branches()), self.vit(stem, self.adapter.branches()), labels))
        before, after, all_labels = (torch.cat(column) for column in zip(*parts, strict=True))
        return (before, after), all_labels

    def logits(self, images: Tensor) -> Tensor:
        """Compute scaled cosines under the adapter: (B, C)."""
        logits: Tensor = self.head(self.vit(images, self.adapter.branches()))
        return logits


def estimate_drift(before: Tensor, after: Tensor, means: Tensor, width: float) -> Tensor:
    """Estimate the drift of each mean (K, D) from features (n, D) of images before and after.

    >>> before = torch.tensor([[0.0, 0.0], [4.0, 0.0]])
    >>> estimate_drift(before, before + torch.tensor([1.0, 2.0]), torch.tensor([[1.0, 0.0]]), 0.5)
    tensor([[1., 2.]])
    """
    squares = torch.cdist(means, before).square()  # (K, n)
    tiny = torch.finfo(squares.dtype).tiny  # all images may coincide with the mean
    typical = squares.mean(dim=1, keepdim=True).clamp_min(tiny)
    weights = torch.exp(-squares / (2 * width**2 * typical)) + FLOOR
    return weights @ (after - before) / weights.sum(dim=1, keepdim=True)
