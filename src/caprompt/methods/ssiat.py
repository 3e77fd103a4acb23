"""SSIAT: one shared adapter that trains on and on, and statistics that follow its drift (Tan et al., CVPR 2024, arXiv:2403.19979).

The adapter and a cosine head are trained on every task in turn, with no constraint, on

    -log softmax_y( s (cos(f(x), w_c) - m [c = y]) )        among the classes of the task.

That moves the features of old classes, too. How far is estimated from the images at hand, each seen under the adapter as it was
before the task (a) and as it is after it (b): the mean of an old class moves like the images that used to lie near it,

    mu_c += sum_i w_i (b_i - a_i) / sum_i w_i,        w_i = exp(-|a_i - mu_c|^2 / (2 (k r_c)^2)) + 1e-5

with r_c^2 the mean of |a_i - mu_c|^2. Then the whole head is trained on features drawn from every class's Gaussian; the mean of a
class of task i among T is drawn in by 0.9 + 0.1 i / T.

Shapes: n images, C classes, K of them old, D width.
"""

from __future__ import annotations

import copy
import math

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor, nn

from caprompt.backbones.vit import ViT
from caprompt.methods.base import Batches
from caprompt.methods.components import alignment
from caprompt.methods.components.adapters import Adapter, AdapterOptions
from caprompt.methods.components.heads import CosineHead
from caprompt.methods.components.statistics import Draw
from caprompt.methods.registry import register
from caprompt.methods.templates import DirectMethod

__all__ = ["Ssiat", "SsiatOptions", "drift"]

FLOOR = 1e-5  # weight of an image however far it lies


class SsiatOptions(alignment.ReplayOptions, AdapterOptions):
    """The classifier's loss, the estimate of the drift, and the alignment."""

    scale: float = Field(20.0, gt=0, description="s: logits are this times the cosine")
    margin: float = Field(0.0, ge=0, description="m: what an image's own class is set back by in training")
    later_share: float = Field(0.5, gt=0, le=1, description="epochs of tasks after the first, as a share of epochs")
    drift_width: float = Field(
        0.5, gt=0, description="k: how near images count for the drift; 1 is a class's mean distance to them"
    )
    align_epochs: int = Field(5, ge=0, description="epochs of classifier alignment after a task; 0 for none")
    align_rate: float = Field(0.01, gt=0, description="SGD's rate in the alignment (momentum 0.9, cosine)")
    align_draws: int = Field(11, ge=1, description="features drawn per class and epoch, in batches (batch_size)")


@register("ssiat")
class Ssiat(DirectMethod):
    """One adapter for all tasks; what it does to old classes is estimated and made good."""

    summary = "one shared adapter, class statistics corrected for its drift, unified cosine head (CVPR 2024)"
    options_class = SsiatOptions
    options: SsiatOptions
    head: CosineHead

    def __init__(self, vit: ViT, options: SsiatOptions) -> None:
        super().__init__(vit, options, CosineHead(vit.config.width, options.scale))
        self.adapter = Adapter(vit.config, options)
        self.register_buffer("before", self.adapter_vector())
        self.statistics = alignment.build_statistics(options, vit.config.width)

    before: Tensor  # the adapter that the statistics were last brought up to, flat

    @property
    def epochs(self) -> int:
        """Fewer where the adapter has learned from earlier tasks."""
        return self.options.epochs if len(self.task_sizes) <= 1 else math.ceil(self.options.later_share * self.options.epochs)

    def begin_task(self, classes: int, generator: torch.Generator) -> None:
        """Further head rows and statistics; the adapter gets its random start with the first task."""
        super().begin_task(classes, generator)
        self.statistics.grow(classes)
        if len(self.task_sizes) == 1:
            self.adapter.restart(generator)

    def adapter_vector(self) -> Tensor:
        """A copy of the adapter as it is now, flat."""
        return nn.utils.parameters_to_vector(self.adapter.parameters()).detach().clone()

    def loss(self, images: Tensor, labels: Tensor) -> dict[str, Tensor]:
        """Cross entropy of the scaled cosines among the task's classes, with a margin."""
        logits = self.logits(images)
        if self.options.margin:
            logits = logits - self.options.scale * self.options.margin * F.one_hot(labels, self.num_classes)
        return {"ce": self.masked_cross_entropy(logits, labels)}

    @torch.no_grad()
    def consolidate(self, batches: Batches, generator: torch.Generator) -> None:
        """Move the old means, take the images in, and align the head wherever there is something to align it with."""
        known = self.statistics.count > 0  # (C,)
        pairs, labels = self.paired_features(batches)
        if known.any():
            self.statistics.mean[known] += drift(*pairs, self.statistics.mean[known], self.options.drift_width)
        self.before = self.adapter_vector()
        self.statistics.observe_all([(pairs[1], labels)])
        if known.any():
            with torch.enable_grad():
                alignment.align_head(self.head, self.statistics, self.options, self.num_classes, generator, self.drawn_in())

    def paired_features(self, batches: Batches) -> tuple[tuple[Tensor, Tensor], Tensor]:
        """The same images under the adapter as it was and as it is, (n, D) each, and their classes (n,)."""
        earlier = copy.deepcopy(self.adapter)
        nn.utils.vector_to_parameters(self.before, earlier.parameters())
        found = []
        for images, labels in batches:
            stem = self.vit.stem(images)
            found.append((self.vit(stem, earlier.branches()), self.vit(stem, self.adapter.branches()), labels))
        before, after, classes = (torch.cat(parts) for parts in zip(*found, strict=True))
        return (before, after), classes

    def drawn_in(self) -> Draw:
        """Draws from the statistics with the means of old tasks' classes a little nearer to zero."""
        own = self.statistics.sampler()
        factor = 0.9 + 0.1 * (self.task_of_class + 1) / len(self.task_sizes)  # (C,)
        inwards = ((factor - 1).unsqueeze(1) * self.statistics.mean).unsqueeze(1)  # (C, 1, D)
        return lambda each, generator: own(each, generator) + inwards

    def logits(self, images: Tensor) -> Tensor:
        """Scaled cosines under the adapter: (B, C)."""
        logits: Tensor = self.head(self.vit(images, self.adapter.branches()))
        return logits


def drift(earlier: Tensor, later: Tensor, means: Tensor, width: float) -> Tensor:
    """How far each mean (K, D) has moved, from the paired features (n, D) of images before and after.

    >>> earlier = torch.tensor([[0.0, 0.0], [4.0, 0.0]])
    >>> drift(earlier, earlier + torch.tensor([1.0, 2.0]), torch.tensor([[1.0, 0.0]]), 0.5)
    tensor([[1., 2.]])
    """
    squares = torch.cdist(means, earlier).square()  # (K, n)
    tiny = torch.finfo(squares.dtype).tiny  # all images may lie on the mean
    typical = squares.mean(dim=1, keepdim=True).clamp_min(tiny)
    weights = torch.exp(-squares / (2 * width**2 * typical)) + FLOOR
    return weights @ (later - earlier) / weights.sum(dim=1, keepdim=True)
