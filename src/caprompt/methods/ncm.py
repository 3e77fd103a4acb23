"""Nearest class mean, SimpleCIL (Zhou et al., IJCV 2024, arXiv:2303.07338): the reference that costs no training at all.

    p_c = mean of f(x) over the images x of class c,        logit_c(x) = s cos(f(x), p_c)

with f the frozen, un-adapted backbone and un-augmented images. Features are averaged as they are; the last norm gives them nearly
equal lengths, so normalising them first would hardly turn the mean. Nothing depends on the order or the number of tasks.

Shapes: B images, C classes, D width.
"""

from __future__ import annotations

import torch
from torch import Tensor

from caprompt.backbones.vit import ViT
from caprompt.methods.base import Batches
from caprompt.methods.components.heads import PrototypeHead, ScoreOptions
from caprompt.methods.registry import register
from caprompt.methods.templates import DirectMethod

__all__ = ["NearestClassMean"]


@register("ncm")
class NearestClassMean(DirectMethod):
    """Class means of frozen features."""

    summary = "nearest class mean of frozen features by cosine, no training (SimpleCIL)"
    options_class = ScoreOptions
    options: ScoreOptions
    head: PrototypeHead

    def __init__(self, vit: ViT, options: ScoreOptions) -> None:
        super().__init__(vit, options, PrototypeHead(vit.config.width))

    @property
    def epochs(self) -> int:
        """Nothing is trained."""
        return 0

    def loss(self, images: Tensor, labels: Tensor) -> dict[str, Tensor]:
        """Nothing is trained, so nothing is minimised."""
        return {}

    @torch.no_grad()
    def consolidate(self, batches: Batches, generator: torch.Generator) -> None:
        """Take the images into their classes' means, exactly: as if all images of a class had come at once."""
        self.head.statistics.observe_all((self.vit(images), labels) for images, labels in batches)

    def logits(self, images: Tensor) -> Tensor:
        """Scaled cosines with the means: (B, C)."""
        logits: Tensor = self.options.scale * self.head(self.vit(images))
        return logits
