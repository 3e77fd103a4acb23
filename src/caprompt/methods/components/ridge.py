"""Incremental ridge regression on random projections: the closed-form classifier of RanPAC.

    h(x) = relu(f(x) P),  P ~ N(0, 1) fixed,        W = (G + lambda I)^-1 Q,        logits = h(x) W

G = sum_x h(x)^T h(x) and Q = sum_x h(x)^T onehot(y) are sums over images, so images of new and of
known classes are simply added, in any order, and nothing is forgotten. P is not saved: it is drawn
again from a saved seed.

lambda is a constant times the mean squared length of h(x), tr(G) / n. With that, one constant suits
one image of a class and hundreds, and any backbone (docs/experiments.md, "Strength of the
regression"): lambda is the variance of the noise in the targets of a Gaussian process whose kernel
is h(x) . h(y), and neither depends on the number of images. With few images the regression is then
close to a nearest-class-mean classifier.

Without that constant, lambda is a power of ten, selected by the squared error on a held-out fifth of
each call's images, with the rest of that call as training data. The errors are summed over calls, so
a call with few images does not outweigh one with many. Accuracy is best at a slightly smaller lambda
than squared error is: if the next smaller power is nearly as good, it is used instead.

Shapes: n images, C classes, D width, M projections.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from caprompt.errors import InputError
from caprompt.methods.components.heads import Head

__all__ = ["STRENGTHS", "RandomRidge", "RidgeHead", "compute_held_out_errors", "pack_symmetric", "unpack_symmetric"]

STRENGTHS = tuple(10.0**power for power in range(-8, 9))  # candidates for lambda
_HELD_OUT = 0.2  # fraction of a call's images
_TOLERANCE = 1.05  # relative to the smallest error
_MAX_IMAGES = 1_250  # used to select lambda in one call; more would not change a power of ten


class RidgeHead(Head):
    """Ridge regression from M features to one-hot classes, updated by adding to sums."""

    gram: Tensor  # G, (M, M); allocated with the first images, since it is large
    sums: Tensor  # Q^T, (C, M)
    weight: Tensor  # W^T, (C, M)
    errors: Tensor  # squared held-out error of each candidate lambda, summed over calls, (17,)
    count: Tensor  # n, the number of images; only where lambda is relative

    def __init__(self, width: int, relative_strength: float | None = None) -> None:
        super().__init__()
        self.relative_strength = relative_strength
        if relative_strength is not None:
            self.register_buffer("count", torch.zeros((), dtype=torch.long))
        self.register_buffer("gram", torch.zeros(0, 0))
        self.register_buffer("sums", torch.zeros(0, width))
        self.register_buffer("weight", torch.zeros(0, width))
        self.register_buffer("errors", torch.zeros(len(STRENGTHS), dtype=torch.float64))

    def grow(self, num_classes: int, generator: torch.Generator) -> None:
        """Append rows of zeros for new classes."""
        self.sums, self.weight = (F.pad(rows, (0, 0, 0, num_classes)) for rows in (self.sums, self.weight))

    def observe(self, hidden: Tensor, labels: Tensor) -> None:
        """Add images (n, M) of classes (n,) to the sums."""
        if not len(self.gram):
            self.gram = hidden.new_zeros(hidden.shape[1], hidden.shape[1])
        if self.relative_strength is not None:
            self.count += len(hidden)
        self.gram.addmm_(hidden.T, hidden)
        self.sums.addmm_(F.one_hot(labels, len(self.sums)).T.to(hidden), hidden)

    def update_errors(self, hidden: Tensor, labels: Tensor) -> None:
        """Add the errors of each lambda on the first fifth of these shuffled images (n, M)."""
        count = round(_HELD_OUT * len(labels))
        if count:
            targets, hidden = F.one_hot(labels, len(self.sums)).double(), hidden.double()
            self.errors += compute_held_out_errors(hidden[count:], targets[count:], hidden[:count], targets[:count])

    @property
    def strength(self) -> float:
        """lambda: relative to the mean squared length of h, or the best or next smaller candidate.

        It is at least the rounding error in G.
        """
        rounding = torch.finfo(self.gram.dtype).eps * float(self.gram.diagonal().max()) * math.sqrt(len(self.gram))
        if self.relative_strength is not None:
            mean_square = float(self.gram.diagonal().double().sum()) / max(1, int(self.count))
            return max(self.relative_strength * mean_square, rounding)
        best = int(self.errors.argmin())
        smaller = max(0, best - 1)
        return max(STRENGTHS[smaller if self.errors[smaller] <= _TOLERANCE * self.errors[best] else best], rounding)

    def solve(self) -> None:
        """Solve for the weights in float64; if that fails, retry with lambda ten times as large."""
        if not self.gram.isfinite().all():
            raise InputError("the backbone's features of some images are not finite; use precision='bf16' or 'fp32'")
        system, strength = self.gram.double(), self.strength
        system.diagonal().add_(strength)
        factor, failed = torch.linalg.cholesky_ex(system)
        while failed:  # nearly identical images, whose differences are smaller than the rounding of the float32 sums
            system.diagonal().add_(9 * strength)
            strength *= 10
            factor, failed = torch.linalg.cholesky_ex(system)
        self.weight = torch.cholesky_solve(self.sums.T.double(), factor).T.to(self.weight)

    def forward(self, hidden: Tensor) -> Tensor:
        return F.linear(hidden, self.weight.to(hidden))  # (n, M) -> (n, C)

    def _save_to_state_dict(self, state: dict[str, Any], prefix: str, keep_vars: bool) -> None:
        """Save half of the symmetric G, which is nearly all of a model's file."""
        super()._save_to_state_dict(state, prefix, keep_vars)
        state[f"{prefix}gram"] = pack_symmetric(self.gram)

    def _load_from_state_dict(self, state: dict[str, Any], prefix: str, *rest: Any) -> None:
        """Allocate G in its saved size; it is empty if no images have been seen."""
        name = f"{prefix}gram"
        if name in state:
            gram = unpack_symmetric(state[name], self.sums.shape[1])
            self.gram = self.gram.new_zeros(gram.shape)
            state = {**state, name: gram}
        super()._load_from_state_dict(state, prefix, *rest)


class RandomRidge(Head):
    """Ridge regression on a random projection of features (n, D) to M dimensions."""

    seed: Tensor
    projection: Tensor  # P, (D, M)

    def __init__(self, width: int, projections: int, relative_strength: float | None = None) -> None:
        super().__init__()
        self.width, self.projections = width, projections
        self.ridge = RidgeHead(projections, relative_strength)
        self.register_buffer("seed", torch.zeros((), dtype=torch.long))
        self.register_buffer("projection", torch.empty(width, 0), persistent=False)

    def _draw_projection(self) -> None:
        """Draw the projection from the seed, the same on every device."""
        rng = torch.Generator().manual_seed(int(self.seed))
        self.projection = torch.randn(self.width, self.projections, generator=rng).to(self.projection)

    def _load_from_state_dict(self, state: dict[str, Any], prefix: str, *rest: Any) -> None:
        super()._load_from_state_dict(state, prefix, *rest)
        self._draw_projection()

    def grow(self, num_classes: int, generator: torch.Generator) -> None:
        """Add new classes; with the first ones the projection is drawn."""
        if not len(self.ridge.sums):
            self.seed.copy_(torch.randint(2**62, (), generator=generator))
            self._draw_projection()
        self.ridge.grow(num_classes, generator)

    def project(self, features: Tensor) -> Tensor:
        """Compute h(x): (n, D) -> (n, M)."""
        return F.relu(features @ self.projection)

    @torch.no_grad()
    def partial_fit(self, pairs: Iterable[tuple[Tensor, Tensor]], generator: torch.Generator) -> None:
        """Add batches of features (n, D) and classes (n,) to the sums, select lambda, and solve."""
        seen = []
        for features, labels in pairs:
            seen.append((features, labels))
            self.ridge.observe(self.project(features), labels)
        if not seen:
            return
        if self.ridge.relative_strength is None:
            features, labels = (torch.cat(parts) for parts in zip(*seen, strict=True))
            subset = torch.randperm(len(labels), generator=generator)[:_MAX_IMAGES].to(labels.device)
            self.ridge.update_errors(self.project(features[subset]), labels[subset])
        self.ridge.solve()

    def forward(self, features: Tensor) -> Tensor:
        """Compute logits in float64: (n, D) -> (n, C).

        In float32, sums of thousands of terms would depend on the batch size in the fifth digit.
        """
        out: Tensor = self.ridge(F.relu(features.double() @ self.projection.double()))
        return out.to(features)


def pack_symmetric(square: Tensor) -> Tensor:
    """Pack the lower triangle of a symmetric matrix: (M, M) -> (M / 2, M + 1).

    An odd M is padded to even. With the blocks [[A, C^T], [C, D]]: C, and beside it the lower
    triangles of A, transposed, and of D in one rectangle. The lower triangle is preserved bit for
    bit, and the Cholesky decomposition reads nothing else.
    """
    if not len(square):
        return square
    square = F.pad(square, (0, len(square) % 2, 0, len(square) % 2))
    half = len(square) // 2
    corners = F.pad(square[:half, :half].tril().T, (1, 0)) + F.pad(square[half:, half:].tril(), (0, 1))  # (M / 2, M / 2 + 1)
    return torch.cat([square[half:, :half], corners], dim=1)


def unpack_symmetric(packed: Tensor, size: int) -> Tensor:
    """Unpack the result of `pack_symmetric`: (M / 2, M + 1) -> (M, M).

    >>> square = torch.tensor([[1.0, 2, 3], [2, 4, 5], [3, 5, 6]])
    >>> packed = pack_symmetric(square)
    >>> packed.shape, torch.equal(unpack_symmetric(packed, 3), square)
    (torch.Size([2, 5]), True)
    """
    rows = len(packed)
    if packed.shape[1] == rows:  # empty, or from an older model that was saved unpacked
        return packed
    first, below, last = packed[:, rows + 1 :].triu().T, packed[:, :rows], packed[:, rows:-1].tril()
    first, last = (lower + lower.tril(-1).T for lower in (first, last))
    return torch.cat([torch.cat([first, below.T], dim=1), torch.cat([below, last], dim=1)])[:size, :size]


def compute_held_out_errors(train: Tensor, train_targets: Tensor, test: Tensor, test_targets: Tensor) -> Tensor:
    """Return the squared error on held-out images for every lambda: (n, M), (n, C), ... -> (17,).

    One eigendecomposition serves all lambdas. It is that of the smaller of h h^T (n, n) and h^T h
    (M, M): since (h^T h + lambda I)^-1 h^T = h^T (h h^T + lambda I)^-1, both give the same
    predictions.
    """
    if len(train) <= train.shape[1]:
        gram, left, right = train @ train.T, test @ train.T, train_targets
    else:
        gram, left, right = train.T @ train, test, train.T @ train_targets
    values, vectors = torch.linalg.eigh(gram)
    left, right, values = left @ vectors, vectors.T @ right, values.clamp_min(0).unsqueeze(1)
    predictions = (left @ (right / (values + strength)) for strength in STRENGTHS)
    return torch.stack([(predicted - test_targets).square().sum() for predicted in predictions])
