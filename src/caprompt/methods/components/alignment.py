"""Feature replay and classifier alignment.

The head is trained on features that are sampled from class statistics, without images.

The kinds of statistics and their memory per class are described in `statistics.py`.

Shapes: C classes, D width of the features.
"""

from __future__ import annotations

import math
from typing import Literal

import torch
import torch.nn.functional as F
from pydantic import ConfigDict, Field, ValidationInfo, field_validator
from torch import Tensor, nn

from caprompt.methods.components.statistics import Covariance, LowRank, MultiCentroid, Sampler, Statistics, Variance
from caprompt.methods.options import Options
from caprompt.utils import optimizers
from caprompt.utils.cuda_graphs import capture
from caprompt.utils.random import make_generator_on

__all__ = ["ReplayKind", "ReplayOptions", "align_head", "build_statistics", "make_shrunk_sampler"]

ReplayKind = Literal["covariance", "low-rank", "variance", "multi-centroid", "mean"]


AUTO_BATCH_SIZE = 24  # in which sampled features are counted where the batches of images depend on their number


MAX_SAMPLED = 100_000  # features per class and alignment epoch, which are in memory at once


class ReplayOptions(Options):
    """Options of the stored class statistics and of classifier alignment."""

    model_config = ConfigDict(validate_default=True)  # that of `align_draws` may be too many for a given `batch_size`

    replay: ReplayKind = Field("covariance", description="statistics stored per class")
    rank: int = Field(16, ge=1, description="replay='low-rank': principal directions per class")
    centroids: int = Field(5, ge=1, description="replay='multi-centroid': centroids per class")
    align_epochs: int = Field(100, ge=0, description="epochs of classifier alignment after each task; 0 for none")
    align_rate: float = Field(0.1, gt=0, description="learning rate of classifier alignment (SGD, momentum 0.9, cosine schedule)")
    align_draws: int = Field(5, ge=1, description="features sampled per class and alignment epoch, in multiples of batch_size")

    @field_validator("align_draws")
    @classmethod
    def check_sampled(cls, value: int, info: ValidationInfo) -> int:
        """Refuse more features than memory has room for."""
        sampled = value * _count_draw(info.data.get("batch_size", "auto"))  # without one if it is itself not valid
        if sampled > MAX_SAMPLED:
            raise ValueError(f"align_draws times batch_size should be at most {MAX_SAMPLED:,}, not {sampled:,}")
        return value


def _count_draw(batch_size: int | Literal["auto"]) -> int:
    """Return the features per class of one draw."""
    return AUTO_BATCH_SIZE if batch_size == "auto" else batch_size


def build_statistics(options: ReplayOptions, width: int) -> Statistics:
    """Return empty statistics of the kind selected by `options.replay`."""
    if options.replay == "low-rank":
        return LowRank(width, options.rank)
    if options.replay == "multi-centroid":
        return MultiCentroid(width, options.centroids)
    return {"mean": Statistics, "variance": Variance, "covariance": Covariance}[options.replay](width)


def make_shrunk_sampler(statistics: Statistics, task_of_class: Tensor) -> Sampler:
    """Return a sampler that shrinks the means of earlier tasks towards zero.

    The mean of a class of task i among T, counted from 1, is multiplied by 0.9 + 0.1 i / T;
    `task_of_class` (C,) counts from 0.
    """
    sample = statistics.make_sampler()
    factor = 0.9 + 0.1 * (task_of_class + 1) / (task_of_class[-1] + 1)  # (C,)
    offset = ((factor - 1).unsqueeze(1) * statistics.mean).unsqueeze(1)  # (C, 1, D)
    return lambda each, generator: sample(each, generator) + offset


def align_head(
    head: nn.Module,
    statistics: Statistics,
    options: ReplayOptions,
    num_old_classes: int,
    generator: torch.Generator,
    sample: Sampler | None = None,
) -> None:
    """Train only the head, on features sampled from every class, to make tasks comparable.

    Each epoch samples `align_draws` batches of features per class and takes `num_old_classes` steps
    of that many features. Features are sampled from the statistics, unless the method passes its
    own `sample`.
    """
    each, device = options.align_draws * _count_draw(options.batch_size), statistics.mean.device
    rng = make_generator_on(device, generator)
    optimizer = optimizers.make_optimizer("sgd", [(list(head.parameters()), options.align_rate)])
    labels = torch.arange(len(statistics.mean), device=device).repeat_interleave(each)  # (C * each,)
    sample = sample or statistics.make_sampler()

    def run_epoch(features: Tensor, order: Tensor) -> None:
        for batch in order.split(each)[:num_old_classes]:
            loss = F.cross_entropy(head(features[batch]), labels[batch])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()

    captured_epoch = capture(run_epoch, device)
    for epoch in range(options.align_epochs):
        optimizers.set_learning_rates(optimizer, (1 + math.cos(math.pi * epoch / options.align_epochs)) / 2)
        features = sample(each, rng).flatten(0, 1)  # (C * each, D)
        captured_epoch(features, torch.randperm(len(labels), generator=rng, device=device))
