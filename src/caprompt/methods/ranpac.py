"""RanPAC: ridge regression on random features (McDonnell et al., NeurIPS 2023, arXiv:2307.02251).

    logits = s relu(f(x) P) W

P ~ N(0, 1) is fixed, and W is the ridge regression onto one-hot classes over all images so far.
The regression is solved in closed form from sums over images, so nothing is forgotten (see
`components/ridge.py`). Optionally (`adapt_first`) an adapter is trained on the first task and then
frozen, which adapts the features to the domain of the images.

The strength lambda of the regression is selected anew in every call (`ridge_selection`): the images
of that call are divided once, a regression is fitted to four fifths of them for every power of ten
from 10^-8 to 10^8, and the one with the least squared error on the last fifth is taken. With
`ridge_selection="sums"` it follows from the sums alone, and then so does the whole model: it is the
same however the images are divided into calls, and models with the same adapter, or none, can be
merged.

Shapes: n images, C classes, D width.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from types import MappingProxyType
from typing import Any, ClassVar, Literal

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor, nn

from caprompt.backbones.vit import ViT
from caprompt.methods.base import Batches, Method
from caprompt.methods.components.adapters import Adapter, AdapterOptions
from caprompt.methods.components.exact_sums import OTHER_PROJECTION, OTHER_TRAINING, ExactSumsOptions, compute_each
from caprompt.methods.components.heads import CosineHead, LogitScaleOptions, ProxyOptions
from caprompt.methods.components.ridge import STRENGTHS, RandomRidge, RidgeHead
from caprompt.methods.registry import register
from caprompt.methods.templates import DirectMethod
from caprompt.utils.communication import get_communicator

__all__ = ["CurrentTaskRidge", "CurrentTaskRidgeHead", "RanPAC", "RanPACOptions"]

RELATIVE_STRENGTH = 0.03  # lambda over the mean square of the projected features, with `ridge_selection="sums"`
MAX_IMAGES = 10_000  # used to select lambda in one call; twice a task of CIFAR-100, more would not fit on a small GPU


class CurrentTaskRidgeHead(RidgeHead):
    """Ridge regression whose lambda depends on the held-out errors of the last call alone."""

    def update_errors(self, hidden: Tensor, labels: Tensor) -> None:
        """Replace the errors of each lambda; too few images to hold any out leave them as they are."""
        before = self.errors
        self.errors = torch.zeros_like(before)
        super().update_errors(hidden, labels)
        if not self.errors.any():
            self.errors = before

    @property
    def strength(self) -> float:
        """lambda: the candidate of least error, but at least the rounding error in G."""
        # The base class takes this candidate or a smaller one, or the rounding error if that is larger.
        return max(STRENGTHS[int(self.errors.argmin())], super().strength)


class CurrentTaskRidge(RandomRidge):
    """Ridge regression on a random projection, with a lambda that all images of the last call select."""

    max_images: ClassVar[int] = MAX_IMAGES

    def __init__(self, width: int, projections: int, dtype: torch.dtype = torch.float32) -> None:
        super().__init__(width, projections, dtype=dtype)
        self.ridge = CurrentTaskRidgeHead(projections, dtype=dtype)


class RanPACOptions(AdapterOptions, LogitScaleOptions, ProxyOptions, ExactSumsOptions):
    """Options of the random projection, of the regression and of the first-task adaptation."""

    projections: int = Field(10_000, ge=1, description="width of the random projection; the model file grows with its square")
    adapt_first: bool = Field(True, description="train an adapter on the first task, then freeze it; if false, train nothing")
    ridge_selection: Literal["current-task", "all-tasks", "sums"] = Field(
        "current-task",
        description="what selects the strength of the regression: held-out images of the last call, or of all calls, where a "
        "smaller strength wins if it is nearly as good; or the sums alone, whatever the calls were",
    )

    before_added: ClassVar[Mapping[str, Any]] = MappingProxyType({"ridge_selection": "all-tasks"})


def make_ridge(width: int, options: RanPACOptions) -> RandomRidge:
    """Return an empty regression for features of this width."""
    dtype = torch.float64 if options.exact_sums else torch.float32
    if options.ridge_selection == "current-task":
        return CurrentTaskRidge(width, options.projections, dtype)
    strength = RELATIVE_STRENGTH if options.ridge_selection == "sums" else None
    return RandomRidge(width, options.projections, strength, dtype=dtype)


@register("ranpac")
class RanPAC(DirectMethod):
    """Random projection and ridge regression, on features adapted to the first task."""

    summary = "ridge regression on random projections, an adapter for the first task (NeurIPS 2023)"
    options_class = RanPACOptions
    can_train_in_threads = True
    check_options: ClassVar = {**DirectMethod.check_options, "projections": 100, "bottleneck": 4}
    check_variants: ClassVar = (
        {"adapt_first": False},
        {"ridge_selection": "all-tasks"},
        {"ridge_selection": "sums"},
        {"exact_sums": False},
    )
    divides_passes = True
    options: RanPACOptions
    head: RandomRidge

    def __init__(self, vit: ViT, options: RanPACOptions) -> None:
        super().__init__(vit, options, make_ridge(vit.config.width, options))
        self.adapter = Adapter(vit.config, options) if options.adapt_first else None
        self.proxy = self.make_proxy().requires_grad_(False)

    def make_proxy(self) -> CosineHead:
        """Return an empty head for the first task's classes: it trains the adapter and is not used for prediction."""
        return CosineHead(self.vit.config.width, initial=self.options.proxy_scale).to(self.device)

    @property
    def learning_state(self) -> tuple[str, ...]:
        """The sums of the regression, and the head that trains the adapter."""
        return ("proxy", *(f"head.{name}" for name in self.head.learning_state))

    def begin_task(self, num_classes: int, generator: torch.Generator) -> None:
        """Add head rows; the adapter and its proxy are trained on the first task, then frozen."""
        super().begin_task(num_classes, generator)
        first = len(self.task_sizes) == 1
        if self.adapter is not None:
            self.adapter.requires_grad_(first)
            self.proxy = self.make_proxy().requires_grad_(first)
            if first:
                self.adapter.reset_parameters(generator)
                self.proxy.grow(num_classes, generator)

    # -- training on the first task ----------------------------------------------------------------

    @property
    def epochs(self) -> int:
        """Number of training epochs: 0 after the first task, or without an adapter."""
        return self.effort.epochs if self.options.adapt_first and len(self.task_sizes) <= 1 else 0

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
        extract = partial(compute_each, self.features) if self.options.exact_sums else self.features
        self.head.partial_fit(((extract(images), labels) for images, labels in batches), generator, get_communicator())

    def logits(self, images: Tensor) -> Tensor:
        """Compute the scaled outputs of the regression: (n, C)."""
        logits: Tensor = self.options.scale * self.head(self.features(images))
        return logits

    # -- merging -----------------------------------------------------------------------------------

    merged_options: ClassVar[Mapping[str, Any]] = MappingProxyType({"ridge_selection": "sums"})

    @property
    def common_state(self) -> dict[str, str]:
        """The regressions add up if their inputs are the same."""
        return {"head.seed": OTHER_PROJECTION, "adapter": OTHER_TRAINING}

    def explain_unmergeable(self) -> str | None:
        """Return None: all that is learned after the first task are sums."""
        return None

    def merge(self, other: Method, classes: Tensor, num_images: int, sign: int = 1) -> None:
        """Add the sums of another model, or take them out again."""
        assert isinstance(other, RanPAC)
        self.head.merge(other.head, classes, num_images, sign)

    def finish_merge(self) -> None:
        """Solve the regression."""
        self.head.refit()
