"""RanPAC: ridge regression on a wide random projection of frozen features (McDonnell et al., NeurIPS 2023, arXiv:2307.02251).

    logits = s relu(f(x) P) W,      P ~ N(0, 1) fixed,      W the ridge regression to one-hot classes over all images so far

The regression is a closed form of sums over images and forgets nothing (`ridge.py`). Before it, the features may be adapted to the
kind of images at hand: an adapter is trained on the first task alone, then frozen (`adapt_first`).

Shapes: n images, C classes, D width.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor, nn

from caprompt.backbones.vit import ViT
from caprompt.methods.base import Batches
from caprompt.methods.components.adapters import Adapter, AdapterOptions
from caprompt.methods.components.heads import CosineHead, ScoreOptions
from caprompt.methods.components.ridge import RandomRidge
from caprompt.methods.registry import register
from caprompt.methods.templates import DirectMethod

__all__ = ["RanPAC", "RanPACOptions"]


class RanPACOptions(AdapterOptions, ScoreOptions):
    """The projection, and whether the features are adapted before."""

    projections: int = Field(10_000, ge=1, description="width of the random projection; a model's file grows with its square")
    adapt_first: bool = Field(True, description="train an adapter on the first task, then freeze it; if false, train nothing")


@register("ranpac")
class RanPAC(DirectMethod):
    """Random projections and ridge regression, on features adapted to the first task."""

    summary = "ridge regression on random projections, an adapter for the first task (NeurIPS 2023)"
    options_class = RanPACOptions
    options: RanPACOptions
    head: RandomRidge

    def __init__(self, vit: ViT, options: RanPACOptions) -> None:
        super().__init__(vit, options, RandomRidge(vit.config.width, options.projections))
        self.adapter = Adapter(vit.config, options) if options.adapt_first else None
        self.proxy = CosineHead(vit.config.width).requires_grad_(False)  # teaches the adapter, and never answers

    # -- growth ------------------------------------------------------------------------------------------------------------

    def begin_task(self, classes: int, generator: torch.Generator) -> None:
        """Further rows. The first task brings the projection, and its adapter and proxy learn; after it they are frozen."""
        super().begin_task(classes, generator)
        first = len(self.task_sizes) == 1
        if self.adapter is not None:
            self.adapter.requires_grad_(first)
            self.proxy = CosineHead(self.vit.config.width).to(self.device).requires_grad_(first)
            if first:
                self.adapter.restart(generator)
                self.proxy.grow(classes, generator)

    # -- first task --------------------------------------------------------------------------------------------------------

    @property
    def epochs(self) -> int:
        """Only the first task is trained on."""
        return self.options.epochs if self.options.adapt_first and len(self.task_sizes) <= 1 else 0

    @property
    def trained_head(self) -> nn.Module:
        """The proxy."""
        return self.proxy

    def loss(self, images: Tensor, labels: Tensor) -> dict[str, Tensor]:
        """Cross entropy of the proxy on adapted features."""
        return {"ce": F.cross_entropy(self.proxy(self.features(images)), labels)}

    # -- every task --------------------------------------------------------------------------------------------------------

    def features(self, images: Tensor) -> Tensor:
        """f(x), adapted or not: (n, D)."""
        features: Tensor = self.vit(images) if self.adapter is None else self.vit(images, self.adapter.branches())
        return features

    @torch.no_grad()
    def consolidate(self, batches: Batches, generator: torch.Generator) -> None:
        """Add the images to the regression."""
        self.head.learn(((self.features(images), labels) for images, labels in batches), generator)

    def logits(self, images: Tensor) -> Tensor:
        """The scaled regression: (n, C)."""
        logits: Tensor = self.options.scale * self.head(self.features(images))
        return logits
