"""Ridge regression on frozen features, without any training: the sums of RanPAC without its adapter.

    h(x) = relu(f(x) P),  P ~ N(0, 1) fixed,        W = (G + lambda I)^-1 Q,        logits = s h(x) W

f is the frozen, un-adapted backbone; lambda is relative to the mean squared length of h (`components/ridge.py`). All that is
learned are sums over images, in float64, so the result does not depend on the order or the number of tasks, and the images of a
class can be taken out again exactly.

Shapes: B images, C classes.
"""

from __future__ import annotations

from typing import ClassVar

import torch
from pydantic import Field
from torch import Tensor

from caprompt.backbones.vit import ViT
from caprompt.methods.base import Batches, HonestScores, Method
from caprompt.methods.components.exact_sums import OTHER_PROJECTION, compute_each
from caprompt.methods.components.ridge import MAX_SCORED, RandomRidge
from caprompt.methods.components.shared_rows import SharedRows
from caprompt.methods.options import Options
from caprompt.methods.registry import register
from caprompt.methods.templates import UntrainedMethod
from caprompt.utils.communication import get_communicator

__all__ = ["FrozenRidge", "FrozenRidgeOptions"]


class FrozenRidgeOptions(Options):
    """Options of the random projection and of the regression."""

    projections: int = Field(10_000, ge=1, description="width of the random projection; the model file grows with its square")
    ridge_strength: float = Field(0.1, gt=0, description="lambda, relative to the mean square of the projected features")
    ridge_scale: float = Field(20.0, gt=0, description="factor on the logits")
    keep_features: bool = Field(
        False,
        description="keep the features of every image instead of sums, so that a class can be forgotten without its images; with "
        "few images the model is then smaller, but it reveals more of them",
    )

    at_prediction: ClassVar[frozenset[str]] = Options.at_prediction | {"ridge_scale"}


@register("ridge")
class FrozenRidge(UntrainedMethod):
    """Random projection of frozen features and ridge regression."""

    summary = "ridge regression on random projections of frozen features, no training"
    options_class = FrozenRidgeOptions
    check_options: ClassVar = {**UntrainedMethod.check_options, "projections": 100}
    check_variants: ClassVar = ({"keep_features": True},)
    divides_passes = True
    options: FrozenRidgeOptions
    head: RandomRidge

    def __init__(self, vit: ViT, options: FrozenRidgeOptions) -> None:
        head = RandomRidge(
            vit.config.width,
            options.projections,
            options.ridge_strength,
            keep_features=options.keep_features,
            dtype=torch.float64,
        )
        super().__init__(vit, options, head)

    @property
    def learning_state(self) -> tuple[str, ...]:
        """The sums of the regression, or the features behind them."""
        return tuple(f"head.{name}" for name in self.head.learning_state)

    def features(self, images: Tensor) -> Tensor:
        """Compute f(x), the same for an image in any batch: (B, D)."""
        return compute_each(self.vit, images)

    @torch.no_grad()
    def consolidate(self, batches: Batches, generator: torch.Generator) -> None:
        """Add the images to the regression, and score some of them as if they were left out."""
        communicator = get_communicator()
        pairs = [(self.features(images), labels) for images, labels in batches]
        factor = self.head.partial_fit(pairs, generator, communicator)
        if factor is None:
            return
        shared = SharedRows([len(labels) for _, labels in pairs], communicator)
        subset = torch.randperm(shared.total, generator=generator)[:MAX_SCORED]
        features, labels = shared.gather(self.head.join(pairs), subset)
        logits = self.head.leave_out(factor, [features], labels)(features)
        logits = self.options.ridge_scale * logits
        self.honest_scores = HonestScores(logits, labels)

    def logits(self, images: Tensor) -> Tensor:
        """Compute scaled regression outputs: (B, C)."""
        logits: Tensor = self.options.ridge_scale * self.head(self.vit(images))
        return logits

    # -- forgetting --------------------------------------------------------------------------------

    def explain_inexact(self, has_images: bool) -> str | None:
        """The sums are over all classes: the class's share is known only with its features or images."""
        if has_images or self.options.keep_features:
            return None
        return "the sums of its features are not kept apart from those of other classes; give its images once more"

    @torch.no_grad()
    def subtract_class(self, index: int, batches: Batches | None) -> None:
        """Take the class out of the sums: by its kept features, or by those of its images."""
        if self.options.keep_features:
            self.head.forget_kept(index)
        elif batches is not None:
            for images, labels in batches:
                self.head.ridge.subtract(self.head.project(self.features(images)), labels)

    def refit(self) -> None:
        """Solve the regression again."""
        self.head.refit()

    # -- merging -----------------------------------------------------------------------------------

    @property
    def common_state(self) -> dict[str, str]:
        """The regressions add up if they have the same projection."""
        return {"head.seed": OTHER_PROJECTION}

    def explain_unmergeable(self) -> str | None:
        """Return None: all that is learned are sums."""
        return None

    def merge(self, other: Method, classes: Tensor, num_images: int, sign: int = 1) -> None:
        """Add the sums of another model, or take them out again."""
        assert isinstance(other, FrozenRidge)
        self.head.merge(other.head, classes, num_images, sign)

    def finish_merge(self) -> None:
        """Solve the regression."""
        self.head.refit()
