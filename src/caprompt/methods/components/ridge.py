"""Ridge regression that cannot forget, on random projections of features: the closed form behind RanPAC.

    h(x) = relu(f(x) P),  P ~ N(0, 1) fixed,        W = (G + lambda I)^-1 Q,        answer = h(x) W

G = sum_x h(x)^T h(x) and Q = sum_x h(x)^T onehot(y) are sums over images, so that images of new and of known classes are just
added, and the order in which they come does not matter. P is never stored: it follows from a number that is.

lambda is a power of ten, chosen by the squared error on a fifth of each call's images, fitted to the rest of that call; errors
add up over calls, so that a call of few images does not upset what many have shown. Which class comes first is better told with
less shrinkage than the squared error asks for: where the next weaker power is nearly as good, that one is taken.

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

__all__ = ["STRENGTHS", "RandomRidge", "RidgeHead", "halved", "held_out_errors", "whole"]

STRENGTHS = tuple(10.0**power for power in range(-8, 9))
HELD_OUT = 0.2
NEAR = 1.05  # times the least error
CHOOSE_FROM = 1_250  # images of a call that lambda is chosen with, at most; more would not move a power of ten


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
        """lambda: the best so far or the next weaker, but nothing that drowns in the rounding of G's float32 sums."""
        rounding = torch.finfo(self.gram.dtype).eps * float(self.gram.diagonal().max()) * math.sqrt(len(self.gram))
        best = int(self.errors.argmin())
        weaker = max(0, best - 1)
        return max(STRENGTHS[weaker if self.errors[weaker] <= NEAR * self.errors[best] else best], rounding)

    def solve(self) -> None:
        """The weights that follow from the sums, in float64; lambda ten times as large, and again, where that has no solution."""
        if not self.gram.isfinite().all():
            raise InputError("the backbone's features of some image are no finite numbers; take precision bf16 or fp32")
        system, strength = self.gram.double(), self.strength
        system.diagonal().add_(strength)
        factor, failed = torch.linalg.cholesky_ex(system)
        while failed:  # images that are all but the same, of which float32 sums hold less than their rounding
            system.diagonal().add_(9 * strength)
            strength *= 10
            factor, failed = torch.linalg.cholesky_ex(system)
        self.weight = torch.cholesky_solve(self.sums.T.double(), factor).T.to(self.weight)

    def forward(self, hidden: Tensor) -> Tensor:
        return F.linear(hidden, self.weight.to(hidden))  # (n, M) -> (n, C)

    def _save_to_state_dict(self, state: dict[str, Any], prefix: str, keep_vars: bool) -> None:
        """G is symmetric, and nearly all of a model's file: half of it will do."""
        super()._save_to_state_dict(state, prefix, keep_vars)
        state[f"{prefix}gram"] = halved(self.gram)

    def _load_from_state_dict(self, state: dict[str, Any], prefix: str, *rest: Any) -> None:
        """The sums over images are there only if images have been seen, so their size is the saved one."""
        name = f"{prefix}gram"
        if name in state:
            gram = whole(state[name], self.sums.shape[1])
            self.gram = self.gram.new_zeros(gram.shape)
            state = {**state, name: gram}
        super()._load_from_state_dict(state, prefix, *rest)


class RandomRidge(Head):
    """Ridge regression on a wide random projection of features (n, D)."""

    seed: Tensor
    projection: Tensor  # P, (D, M)

    def __init__(self, width: int, projections: int) -> None:
        super().__init__()
        self.width, self.projections = width, projections
        self.ridge = RidgeHead(projections)
        self.register_buffer("seed", torch.zeros((), dtype=torch.long))
        self.register_buffer("projection", torch.empty(width, 0), persistent=False)

    def project_by_seed(self) -> None:
        """Draw the projection, the same on every device."""
        chance = torch.Generator().manual_seed(int(self.seed))
        self.projection = torch.randn(self.width, self.projections, generator=chance).to(self.projection)

    def _load_from_state_dict(self, state: dict[str, Any], prefix: str, *rest: Any) -> None:
        super()._load_from_state_dict(state, prefix, *rest)
        self.project_by_seed()

    def grow(self, classes: int, generator: torch.Generator) -> None:
        """Room for further classes; the first ones bring the projection."""
        if not len(self.ridge.sums):
            self.seed.copy_(torch.randint(2**62, (), generator=generator))
            self.project_by_seed()
        self.ridge.grow(classes, generator)

    def expanded(self, features: Tensor) -> Tensor:
        """h(x): (n, D) -> (n, M)."""
        return F.relu(features @ self.projection)

    @torch.no_grad()
    def learn(self, pairs: Iterable[tuple[Tensor, Tensor]], generator: torch.Generator) -> None:
        """Add features (n, D) of classes (n,), batch by batch, to the sums; choose lambda; solve."""
        seen = []
        for features, labels in pairs:
            seen.append((features, labels))
            self.ridge.observe(self.expanded(features), labels)
        if not seen:
            return
        features, classes = (torch.cat(parts) for parts in zip(*seen, strict=True))
        chosen = torch.randperm(len(classes), generator=generator)[:CHOOSE_FROM].to(classes.device)
        self.ridge.weigh_strengths(self.expanded(features[chosen]), classes[chosen])
        self.ridge.solve()

    def forward(self, features: Tensor) -> Tensor:
        """(n, D) -> (n, C), in float64: sums of thousands of terms would let the size of a batch show in the fifth digit."""
        out: Tensor = self.ridge(F.relu(features.double() @ self.projection.double()))
        return out.to(features)


def halved(square: Tensor) -> Tensor:
    """A symmetric matrix without what it says twice: (M, M) -> (M / 2, M + 1), an odd M first made even.

    With quarters A C^T / C D: C, and beside it the lower halves of A, turned, and D, which fit into one rectangle. What lies below
    the diagonal is kept to the last bit, and nothing else is read by the Cholesky decomposition.
    """
    if not len(square):
        return square
    square = F.pad(square, (0, len(square) % 2, 0, len(square) % 2))
    half = len(square) // 2
    corners = F.pad(square[:half, :half].tril().T, (1, 0)) + F.pad(square[half:, half:].tril(), (0, 1))  # (M / 2, M / 2 + 1)
    return torch.cat([square[half:, :half], corners], dim=1)


def whole(half: Tensor, size: int) -> Tensor:
    """What `halved` was given: (M / 2, M + 1) -> (M, M).

    >>> square = torch.tensor([[1.0, 2, 3], [2, 4, 5], [3, 5, 6]])
    >>> halved(square).shape, torch.equal(whole(halved(square), 3), square)
    (torch.Size([2, 5]), True)
    """
    rows = len(half)
    if half.shape[1] == rows:  # nothing yet, or of a model that was saved whole
        return half
    first, below, last = half[:, rows + 1 :].triu().T, half[:, :rows], half[:, rows:-1].tril()
    first, last = (lower + lower.tril(-1).T for lower in (first, last))
    return torch.cat([torch.cat([first, below.T], dim=1), torch.cat([below, last], dim=1)])[:size, :size]


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
