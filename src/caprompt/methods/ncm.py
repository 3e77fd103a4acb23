"""Nearest class mean without training: SimpleCIL (Zhou et al., IJCV 2024, arXiv:2303.07338).

    p_c = mean of f(x) over the images x of class c,        logit_c(x) = s cos(f(x), p_c)

f is the frozen, un-adapted backbone; images are not augmented.
Features are averaged without normalization: the last LayerNorm gives them nearly equal lengths, so
normalizing them first would hardly change the direction of the mean.
The result does not depend on the order or the number of tasks.

Shapes: B images, C classes, D width.
"""

from __future__ import annotations

import torch
from torch import Tensor

from caprompt.backbones.vit import ViT
from caprompt.methods.base import Batches
from caprompt.methods.components.heads import LogitScaleOptions, PrototypeHead
from caprompt.methods.registry import register
from caprompt.methods.templates import UntrainedMethod

__all__ = ["NearestClassMean"]


@register("ncm")
class NearestClassMean(UntrainedMethod):
    """Cosine classifier with class means of frozen features."""

    summary = "nearest class mean of frozen features by cosine, no training (SimpleCIL)"
    options_class = LogitScaleOptions
    options: LogitScaleOptions
    head: PrototypeHead

    def __init__(self, vit: ViT, options: LogitScaleOptions) -> None:
        super().__init__(vit, options, PrototypeHead(vit.config.width))

    @torch.no_grad()
    def consolidate(self, batches: Batches, generator: torch.Generator) -> None:
        """Merge the images into the class means, exactly as if all had come at once."""
        self.head.statistics.observe_batches((self.vit(images), labels) for images, labels in batches)

    def explain_inexact(self, has_images: bool) -> str | None:
        """A class is its mean, and nothing else."""
        return None

    def logits(self, images: Tensor) -> Tensor:
        """Compute scaled cosines with the class means: (B, C)."""
        logits: Tensor = self.options.scale * self.head(self.vit(images))
        return logits
