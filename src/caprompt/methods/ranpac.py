"""RanPAC: ridge regression on random features (McDonnell et al., NeurIPS 2023, arXiv:2307.02251).

    logits = s relu(f(x) P) W

P ~ N(0, 1) is fixed, and W is the ridge regression onto one-hot classes over all images so far.
The regression is solved in closed form from sums over images, so nothing is forgotten (see
`components/ridge.py`). Optionally (`adapt_first`) an adapter is trained on the first task and then
frozen, which adapts the features to the domain of the images.

Shapes: n images, C classes, D width.
"""

from __future__ import annotations

from typing import ClassVar

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor, nn

from caprompt.backbones.vit import ViT
from caprompt.methods.base import Batches
from caprompt.methods.components.adapters import Adapter, AdapterOptions
from caprompt.methods.components.heads import CosineHead, LogitScaleOptions
from caprompt.methods.components.ridge import RandomRidge
from caprompt.methods.registry import register
from caprompt.methods.templates import DirectMethod

__all__ = ["RanPAC", "RanPACOptions"]


class RanPACOptions(AdapterOptions, LogitScaleOptions):
    """Options of the random projection and of the first-task adaptation."""

    projections: int = Field(10_000, ge=1, description="width of the random projection; the model file grows with its square")
    adapt_first: bool = Field(True, description="train an adapter on the first task, then freeze it; if false, train nothing")


@register("ranpac")
class RanPAC(DirectMethod):
    """Random projection and ridge regression, on features adapted to the first task."""

    summary = "ridge regression on random projections, an adapter for the first task (NeurIPS 2023)"
    options_class = RanPACOptions
    check_options: ClassVar = {**DirectMethod.check_options, "projections": 100, "bottleneck": 4}
    check_variants: ClassVar = ({"adapt_first": False},)
    options: RanPACOptions
    head: RandomRidge

    def __init__(self, vit: ViT, options: RanPACOptions) -> None:
        super().__init__(vit, options, RandomRidge(vit.config.width, options.projections))
        self.adapter = Adapter(vit.config, options) if options.adapt_first else None
        self.proxy = CosineHead(vit.config.width).requires_grad_(False)  # trains the adapter; not used for prediction

    def begin_task(self, num_classes: int, generator: torch.Generator) -> None:
        """Add head rows; the adapter and its proxy are trained on the first task, then frozen."""
        super().begin_task(num_classes, generator)
        first = len(self.task_sizes) == 1
        if self.adapter is not None:
            self.adapter.requires_grad_(first)
            self.proxy = CosineHead(self.vit.config.width).to(self.device).requires_grad_(first)
            if first:
                self.adapter.reset_parameters(generator)
                self.proxy.grow(num_classes, generator)

    # -- training on the first task ----------------------------------------------------------------

    @property
    def epochs(self) -> int:
        """Number of training epochs: 0 after the first task, or without an adapter."""
        return self.options.epochs if self.options.adapt_first and len(self.task_sizes) <= 1 else 0

    @property
    def trained_head(self) -> nn.Module:
        """The proxy head."""
        return self.proxy

    def loss(self, images: Tensor, labels: Tensor) -> dict[str, Tensor]:
        """Return the cross entropy of the proxy head on adapted features."""
        return {"ce": F.cross_entropy(self.proxy(self.features(images)), labels)}

    # -- regression on every task ------------------------------------------------------------------

    def features(self, images: Tensor) -> Tensor:
        """Compute f(x), adapted if there is an adapter: (n, D)."""
        features: Tensor = self.vit(images) if self.adapter is None else self.vit(images, self.adapter.branches())
        return features

    @torch.no_grad()
    def consolidate(self, batches: Batches, generator: torch.Generator) -> None:
        """Add the images to the regression."""
        self.head.partial_fit(((self.features(images), labels) for images, labels in batches), generator)

    def logits(self, images: Tensor) -> Tensor:
        """Compute the scaled outputs of the regression: (n, C)."""
        logits: Tensor = self.options.scale * self.head(self.features(images))
        return logits
