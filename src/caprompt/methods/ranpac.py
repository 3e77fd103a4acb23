"""RanPAC: ridge regression on a wide random projection of frozen features (McDonnell et al., NeurIPS 2023, arXiv:2307.02251).

    h(x) = relu(f(x) P),  P ~ N(0, 1) fixed,        W = (G + lambda I)^-1 Q,        logits = s h(x) W

G = sum_x h(x)^T h(x) and Q = sum_x h(x)^T onehot(y) are sums over images, so that images of new and of known classes are just
added, and the order in which they come does not matter. P is never stored: it follows from a number that is. Before that, the
features may be adapted to the kind of images at hand: an adapter is trained on the first task alone, then frozen (`adapt_first`).

lambda is the power of ten with the least squared error on a fifth of each call's images, fitted to the rest of that call; errors
add up over calls, so that a call of few images does not upset what many have shown.

Shapes: n images, C classes, D width, M projections.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor, nn

from caprompt.methods.adapters import Adapter, AdapterOptions
from caprompt.methods.base import Batches, Head, register
from caprompt.methods.cosine import CosineHead, ScoreOptions
from caprompt.methods.direct import Direct
from caprompt.vit import ViT

__all__ = ["RanPAC", "RanPACOptions", "RidgeHead", "held_out_errors"]

STRENGTHS = tuple(10.0**power for power in range(-8, 9))
HELD_OUT = 0.2
CHOOSE_FROM = 12_500  # images of a call that lambda is chosen with, at most; more would not move a power of ten


class RanPACOptions(AdapterOptions, ScoreOptions):
    """The projection, and whether the features are adapted before."""

    projections: int = Field(10_000, ge=1, description="width of the random projection; a model's file holds its square")
    adapt_first: bool = Field(True, description="train an adapter on the first task, then freeze it; if false, train nothing")


class RidgeHead(Head):
    """Ridge regression from M features to one-hot classes, by sums that only ever grow."""

    gram: Tensor  # G, (M, M); empty until the first images, since it is large
    sums: Tensor  # Q transposed, (C, M)
    weight: Tensor  # W transposed, (C, M)
    errors: Tensor  # squared held-out error of each strength so far

    def __init__(self, width: int) -> None:
        super().__init__()
        self.register_buffer("gram", torch.zeros(0, 0))
        self.register_buffer("sums", torch.zeros(0, width))
        self.register_buffer("weight", torch.zeros(0, width))
        self.register_buffer("errors", torch.zeros(len(STRENGTHS), dtype=torch.float64))

    def grow(self, classes: int, generator: torch.Generator) -> None:
        """Rows of zeros: a class without images is never answered."""
        self.sums, self.weight = (F.pad(rows, (0, 0, 0, classes)) for rows in (self.sums, self.weight))

    def observe(self, hidden: Tensor, labels: Tensor) -> None:
        """Add images (n, M) of classes (n,) to the sums."""
        if not len(self.gram):
            self.gram = hidden.new_zeros(hidden.shape[1], hidden.shape[1])
        self.gram.addmm_(hidden.T, hidden)
        self.sums.addmm_(F.one_hot(labels, len(self.sums)).T.to(hidden), hidden)

    def weigh_strengths(self, hidden: Tensor, labels: Tensor) -> None:
        """Let images (n, M), in random order, tell how well each strength does on the first fifth of them."""
        held = round(HELD_OUT * len(labels))
        if held:
            targets, hidden = F.one_hot(labels, len(self.sums)).double(), hidden.double()
            self.errors += held_out_errors(hidden[held:], targets[held:], hidden[:held], targets[:held])

    @property
    def strength(self) -> float:
        """lambda: the best so far, but nothing that drowns in the rounding of G's float32 sums."""
        rounding = torch.finfo(self.gram.dtype).eps * float(self.gram.diagonal().max()) * math.sqrt(len(self.gram))
        return max(STRENGTHS[int(self.errors.argmin())], rounding)

    def solve(self) -> None:
        """The weights that follow from the sums, in float64."""
        system = self.gram.double()
        system.diagonal().add_(self.strength)
        self.weight = torch.cholesky_solve(self.sums.T.double(), torch.linalg.cholesky(system)).T.to(self.weight)

    def forward(self, hidden: Tensor) -> Tensor:
        return F.linear(hidden, self.weight)  # (n, M) -> (n, C)


@register("ranpac")
class RanPAC(Direct):
    """Random projections and ridge regression, on features adapted to the first task."""

    summary = "ridge regression on random projections, an adapter for the first task (NeurIPS 2023)"
    options_class = RanPACOptions
    options: RanPACOptions
    head: RidgeHead

    def __init__(self, vit: ViT, options: RanPACOptions) -> None:
        super().__init__(vit, options, RidgeHead(options.projections))
        self.adapter = Adapter(vit.config, options) if options.adapt_first else None
        self.proxy = CosineHead(vit.config.width).requires_grad_(False)  # teaches the adapter, and never answers
        self.register_buffer("seed", torch.zeros((), dtype=torch.long))
        self.register_buffer("projection", torch.empty(vit.config.width, 0), persistent=False)

    seed: Tensor
    projection: Tensor  # P, (D, M)

    # -- growth ------------------------------------------------------------------------------------------------------------

    def begin_task(self, classes: int, generator: torch.Generator) -> None:
        """Further rows. The first task brings the projection, and its adapter and proxy learn; after it they are frozen."""
        super().begin_task(classes, generator)
        first = len(self.task_sizes) == 1
        if first:
            self.seed.copy_(torch.randint(2**62, (), generator=generator))
            self.project_by_seed()
        if self.adapter is not None:
            self.adapter.requires_grad_(first)
            self.proxy = CosineHead(self.vit.config.width).to(self.device).requires_grad_(first)
            if first:
                self.adapter.restart(generator)
                self.proxy.grow(classes, generator)

    def project_by_seed(self) -> None:
        """Draw the projection, the same on every device."""
        chance = torch.Generator().manual_seed(int(self.seed))
        self.projection = torch.randn(self.vit.config.width, self.options.projections, generator=chance).to(self.device)

    def restore(self, task_sizes: Iterable[int], state: Mapping[str, Tensor]) -> None:
        """As any method; the sums over images are there only if images have been seen."""
        rows = len(state.get("head.gram", ()))
        self.head.gram = self.head.gram.new_zeros(rows, rows)
        super().restore(task_sizes, state)
        self.project_by_seed()

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

    def expanded(self, features: Tensor) -> Tensor:
        """h(x): (n, D) -> (n, M)."""
        return F.relu(features @ self.projection)

    @torch.no_grad()
    def consolidate(self, batches: Batches, generator: torch.Generator) -> None:
        """Add the images to the sums, choose lambda, solve."""
        seen = []
        for images, labels in batches:
            seen.append((self.features(images), labels))
            self.head.observe(self.expanded(seen[-1][0]), labels)
        features, classes = (torch.cat(parts) for parts in zip(*seen, strict=True))
        chosen = torch.randperm(len(classes), generator=generator)[:CHOOSE_FROM].to(self.device)
        self.head.weigh_strengths(self.expanded(features[chosen]), classes[chosen])
        self.head.solve()

    def logits(self, images: Tensor) -> Tensor:
        """The scaled regression: (n, C)."""
        logits: Tensor = self.options.scale * self.head(self.expanded(self.features(images)))
        return logits


def held_out_errors(fit: Tensor, fit_targets: Tensor, held: Tensor, held_targets: Tensor) -> Tensor:
    """Squared error on held-out images for every strength of a ridge regression on the others: (n, M), (n, C), ... -> (17,).

    One eigendecomposition serves all strengths, and it is of the smaller matrix: h h^T, images by images, or h^T h; since
    (h^T h + lambda I)^-1 h^T = h^T (h h^T + lambda I)^-1, both give the same predictions.
    """
    if len(fit) <= fit.shape[1]:
        gram, left, right = fit @ fit.T, held @ fit.T, fit_targets
    else:
        gram, left, right = fit.T @ fit, held, fit.T @ fit_targets
    values, vectors = torch.linalg.eigh(gram)
    left, right, values = left @ vectors, vectors.T @ right, values.clamp_min(0).unsqueeze(1)
    predictions = (left @ (right / (values + strength)) for strength in STRENGTHS)
    return torch.stack([(predicted - held_targets).square().sum() for predicted in predictions])
