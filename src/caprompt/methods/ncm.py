"""Nearest class mean without training: SimpleCIL (Zhou et al., IJCV 2024, arXiv:2303.07338).

    p_c = mean of f(x) over the images x of class c,        logit_c(x) = s cos(f(x), p_c)

f is the frozen, un-adapted backbone; images are not augmented.
Features are averaged without normalization: the last LayerNorm gives them nearly equal lengths, so
normalizing them first would hardly change the direction of the mean.
The result does not depend on the order or the number of tasks.

Shapes: B images, C classes, D width.
"""

from __future__ import annotations

from functools import partial
from typing import ClassVar

import torch
from torch import Tensor

from caprompt.backbones.vit import ViT
from caprompt.methods.base import Batches, Method
from caprompt.methods.components.exact_sums import ExactSumsOptions, compute_each
from caprompt.methods.components.heads import LogitScaleOptions, PrototypeHead
from caprompt.methods.registry import register
from caprompt.methods.templates import UntrainedMethod
from caprompt.utils.communication import get_communicator

__all__ = ["NearestClassMean", "NearestClassMeanOptions"]


class NearestClassMeanOptions(LogitScaleOptions, ExactSumsOptions):
    """Options of the scale of the logits and of the sums behind the means."""


@register("ncm")
class NearestClassMean(UntrainedMethod):
    """Cosine classifier with class means of frozen features."""

    summary = "nearest class mean of frozen features by cosine, no training (SimpleCIL)"
    options_class = NearestClassMeanOptions
    check_variants: ClassVar = ({"exact_sums": False},)
    divides_passes = True
    options: NearestClassMeanOptions
    head: PrototypeHead

    def __init__(self, vit: ViT, options: NearestClassMeanOptions) -> None:
        super().__init__(vit, options, PrototypeHead(vit.config.width, torch.float64 if options.exact_sums else torch.float32))

    @torch.no_grad()
    def consolidate(self, batches: Batches, generator: torch.Generator) -> None:
        """Merge the images into the class means, exactly as if all had come at once."""
        extract = partial(compute_each, self.vit) if self.options.exact_sums else self.vit
        pairs = [(extract(images), labels) for images, labels in batches]
        self.head.statistics.observe_means(pairs, get_communicator())

    def explain_inexact(self, has_images: bool) -> str | None:
        """A class is its mean, and nothing else."""
        return None

    def explain_unmergeable(self) -> str | None:
        """Return None: means and numbers of images make up sums."""
        return None

    def merge(self, other: Method, classes: Tensor, num_images: int, sign: int = 1) -> None:
        """Merge the class means of another model, or take them out again."""
        assert isinstance(other, NearestClassMean)
        self.head.statistics.merge(other.head.statistics, classes, sign)

    def logits(self, images: Tensor) -> Tensor:
        """Compute scaled cosines with the class means: (B, C)."""
        logits: Tensor = self.options.scale * self.head(self.vit(images))
        return logits
