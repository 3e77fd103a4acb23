"""Replay without images: features are drawn from the class statistics, and the head is aligned with them.

Which statistics there are, and what each costs per class, is in `class_statistics.py`.
"""

from __future__ import annotations

import math
from typing import Literal

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor, nn

from caprompt.methods.components.statistics import Covariance, Draw, LowRank, MultiCentroid, Statistics, Variance
from caprompt.methods.options import Options
from caprompt.utils import optimizers
from caprompt.utils.cuda_graphs import capture
from caprompt.utils.random import make_generator_on

__all__ = ["ReplayKind", "ReplayOptions", "align_head", "build_statistics"]

ReplayKind = Literal["covariance", "low-rank", "variance", "multi-centroid", "mean"]


class ReplayOptions(Options):
    """What is remembered of classes, and how the head is aligned with it."""

    replay: ReplayKind = Field("covariance", description="what is remembered of each class")
    rank: int = Field(16, ge=1, description="replay='low-rank': directions per class")
    centroids: int = Field(5, ge=1, description="replay='multi-centroid': centroids per class")
    align_epochs: int = Field(100, ge=0, description="epochs of classifier alignment after a task; 0 for none")
    align_rate: float = Field(0.1, gt=0, description="SGD's rate in the alignment (momentum 0.9, cosine)")
    align_draws: int = Field(5, ge=1, description="features drawn per class and epoch, in batches (batch_size)")


def build_statistics(options: ReplayOptions, width: int) -> Statistics:
    """Empty statistics of the kind that the options name."""
    if options.replay == "low-rank":
        return LowRank(width, options.rank)
    if options.replay == "multi-centroid":
        return MultiCentroid(width, options.centroids)
    return {"mean": Statistics, "variance": Variance, "covariance": Covariance}[options.replay](width)


def align_head(
    head: nn.Module,
    statistics: Statistics,
    options: ReplayOptions,
    old_classes: int,
    generator: torch.Generator,
    draw: Draw | None = None,
) -> None:
    """Train the head alone on features drawn from every class, so that classes of different tasks become comparable.

    Each epoch draws `align_draws` batches of features a class and takes as many steps of that size as there are old classes.
    Features come from the statistics as they are, unless the method has its own way to `draw` them.
    """
    each, device = options.align_draws * options.batch_size, statistics.mean.device
    chance = make_generator_on(device, generator)
    optimizer = optimizers.make_optimizer("sgd", [(list(head.parameters()), options.align_rate)])
    labels = torch.arange(len(statistics.mean), device=device).repeat_interleave(each)  # (C * each,)
    draw = draw or statistics.sampler()

    def steps(features: Tensor, order: Tensor) -> None:
        for step in order.split(each)[:old_classes]:
            loss = F.cross_entropy(head(features[step]), labels[step])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()

    epoch_of_steps = capture(steps, device)
    for epoch in range(options.align_epochs):
        optimizers.set_learning_rates(optimizer, (1 + math.cos(math.pi * epoch / options.align_epochs)) / 2)
        features = draw(each, chance).flatten(0, 1)  # (C * each, D)
        epoch_of_steps(features, torch.randperm(len(labels), generator=chance, device=device))
