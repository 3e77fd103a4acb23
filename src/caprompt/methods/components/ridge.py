"""Incremental ridge regression on random projections: the closed-form classifier of RanPAC.

    h(x) = relu(f(x) P),  P ~ N(0, 1) fixed,        W = (G + lambda I)^-1 Q,        logits = h(x) W

G = sum_x h(x)^T h(x) and Q = sum_x h(x)^T onehot(y) are sums over images, so images of new and of
known classes are simply added, in any order, and nothing is forgotten. P is not saved: it is drawn
again from a saved seed. In float64 the sums of any parts of the images, added in any order, are the
same to 13 digits (`merge`, and `partial_fit` by several processes). G is symmetric, and only its lower
triangle is saved, exchanged and read; in float64 only that is computed.

lambda is a constant times the mean squared length of h(x), tr(G) / n. With that, one constant suits
one image of a class and hundreds, and any backbone (docs/experiments.md, "Strength of the
regression"): lambda is the variance of the noise in the targets of a Gaussian process whose kernel
is h(x) . h(y), and neither depends on the number of images. With few images the regression is then
close to a nearest-class-mean classifier. How close is best differs between data: CAPrompt selects
the constant (`strength.py`).

Without that constant, lambda is a power of ten, selected by the squared error on a held-out fifth of
each call's images, with the rest of that call as training data. The errors are summed over calls, so
a call with few images does not outweigh one with many. Accuracy is best at a slightly smaller lambda
than squared error is: if the next smaller power is nearly as good, it is used instead.

Shapes: n images, C classes, D width, M projections.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from caprompt.errors import InputError
from caprompt.methods.components.heads import Head
from caprompt.methods.components.shared_rows import SharedRows
from caprompt.utils.communication import ALONE, Communicator

__all__ = [
    "MAX_SCORED",
    "STRENGTHS",
    "RandomRidge",
    "RidgeHead",
    "compute_held_out_errors",
    "pack_symmetric",
    "unpack_symmetric",
]

STRENGTHS = tuple(10.0**power for power in range(-8, 9))  # candidates for lambda
_HELD_OUT = 0.2  # fraction of a call's images
_TOLERANCE = 1.05  # relative to the smallest error
_CHUNK = 1024  # images that are projected at once
BLOCK = 1024  # rows of G that are computed or exchanged at once
_CACHED_ROWS = 128  # rows of G that are multiplied at once
MAX_SCORED = 1_000  # images of a call that are scored as if they were left out; enough to fit two numbers
_MAX_ROUNDING = 0.01  # bound on the relative error of weights from a factor in float32; a correction divides it by a hundred
_MAX_CORRECTIONS = 5
_ACCURACY = 1e-10  # of the weights' residual; with that, their own error is below the rounding of float32
_MAX_IMAGES = 1_250  # used to select lambda in one call; more would not change a power of ten


class RidgeHead(Head):
    """Ridge regression from M features to one-hot classes, updated by adding to sums."""

    #: Buffers that are sums over images.
    feature_statistics: ClassVar[tuple[str, ...]] = ("gram", "sums")
    #: Buffers that only learning needs.
    learning_state: ClassVar[tuple[str, ...]] = (*feature_statistics, "errors", "count")

    stored_gram: Tensor  # G, (M, M), or half of it as `pack_symmetric` returns it; empty before the first images, since it is large
    sums: Tensor  # Q^T, (C, M)
    weight: Tensor  # W^T, (C, M)
    errors: Tensor  # squared held-out error of each candidate lambda, summed over calls, (17,)
    count: Tensor  # n, the number of images; only where lambda is relative

    def __init__(self, width: int, relative_strength: float | None = None, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        self.relative_strength = relative_strength
        self.saves_gram = True
        if relative_strength is not None:
            self.register_buffer("count", torch.zeros((), dtype=torch.long))
        self.register_buffer("stored_gram", torch.zeros(0, 0, dtype=dtype), persistent=False)
        self.register_buffer("sums", torch.zeros(0, width, dtype=dtype))
        self.register_buffer("weight", torch.zeros(0, width, dtype=dtype))
        self.register_buffer("errors", torch.zeros(len(STRENGTHS), dtype=torch.float64))

    @property
    def gram(self) -> Tensor:
        """G, (M, M), of which the lower triangle counts. Unpacked when it is first needed, which is not for predictions."""
        if _is_packed(self.stored_gram):
            self.stored_gram = unpack_symmetric(self.stored_gram, self.sums.shape[1])
        return self.stored_gram

    @gram.setter
    def gram(self, gram: Tensor) -> None:
        self.stored_gram = gram

    @property
    def pending_bytes(self) -> int:
        """Space on disk that G will take once it is allocated."""
        size = self.sums.shape[1]
        return 0 if len(self.stored_gram) or not self.saves_gram else size * (size + 1) // 2 * self.stored_gram.element_size()

    def grow(self, num_classes: int, generator: torch.Generator) -> None:
        """Append rows of zeros for new classes."""
        self.sums, self.weight = (F.pad(rows, (0, 0, 0, num_classes)) for rows in (self.sums, self.weight))

    def observe(self, hidden: Tensor, labels: Tensor) -> None:
        """Add images (n, M) of classes (n,) to the sums."""
        self._add(hidden, labels, sign=1)

    def subtract(self, hidden: Tensor, labels: Tensor) -> None:
        """Take images (n, M) of classes (n,) out of the sums again; exact up to the rounding of the sums."""
        self._add(hidden, labels, sign=-1)

    def _add(self, hidden: Tensor, labels: Tensor, sign: int) -> None:
        hidden = hidden.to(self.gram.dtype)
        self._allocate()
        if self.relative_strength is not None:
            self.count += sign * len(hidden)
        if self.gram.dtype == torch.float64:
            for rows, block in self._iter_blocks():
                block.addmm_(hidden[:, rows].T, hidden[:, : rows.stop], alpha=sign)
        else:
            self.gram.addmm_(hidden.T, hidden, alpha=sign)
        self.sums.addmm_(F.one_hot(labels, len(self.sums)).T.to(hidden), hidden, alpha=sign)

    def _allocate(self) -> None:
        if not len(self.gram):
            self.gram = self.sums.new_zeros(self.sums.shape[1], self.sums.shape[1])

    def _iter_blocks(self, size: int = BLOCK) -> Iterator[tuple[slice, Tensor]]:
        """Yield blocks of rows of G up to its diagonal: their rows, and a view of the block."""
        for start in range(0, len(self.gram), size):
            rows = slice(start, min(start + size, len(self.gram)))
            yield rows, self.gram[rows, : rows.stop]

    @contextmanager
    def share(self, communicator: Communicator) -> Iterator[None]:
        """Add up what the processes add to the sums within the context, each its own images.

        The first one starts from the earlier sums and the others from zero, so that no copy is needed.
        """
        self._allocate()
        totals = [self.sums, *([self.count] if self.relative_strength is not None else [])]
        if communicator.rank:
            for tensor in (self.gram, *totals):
                tensor.zero_()
        yield
        if communicator.size > 1:
            for tensor in (*totals, *(block for _, block in self._iter_blocks())):
                communicator.add_up(tensor)

    def merge(self, other: RidgeHead, classes: Tensor, num_images: int, sign: int = 1) -> None:
        """Add the sums of another regression over so many images, or take them out again (`sign=-1`).

        Its class i is `classes[i]` here. It knows its own number of images only if its lambda is relative.
        """
        self._allocate()
        if len(other.gram):
            self.gram.add_(other.gram, alpha=sign)
        self.sums.index_add_(0, classes, other.sums.to(self.sums), alpha=sign)
        if self.relative_strength is not None:
            self.count += sign * (num_images if other.relative_strength is None else int(other.count))

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

    def solve(self) -> Tensor:
        """Solve for the weights in float64, and return the Cholesky factor of the system (M, M).

        If that fails, retry with lambda ten times as large. On a CPU, where that takes less time and memory, the factor is in
        float32 if the system allows it, and the weights are corrected to the accuracy of float64.
        """
        if not self.gram.diagonal().isfinite().all():  # sums of squares: no other entry of G is larger than the largest of them
            raise InputError("the backbone's features of some images are not finite; use precision='bf16' or 'fp32'")
        strength = self.strength
        # lambda bounds the smallest eigenvalue from below, the sum of all bounds the largest from above.
        rounding = torch.finfo(torch.float32).eps * float(self.gram.diagonal().double().sum()) / strength
        if self.gram.dtype == torch.float32 and self.gram.device.type == "cpu" and rounding < _MAX_ROUNDING:
            refined = self._solve_refined(strength)
            if refined is not None:
                return refined
        system = self.gram.to(torch.float64, copy=True)
        system.diagonal().add_(strength)
        factor: Tensor
        factor, failed = torch.linalg.cholesky_ex(system)
        while failed:  # nearly identical images, whose differences are smaller than the rounding of the float32 sums
            system.diagonal().add_(9 * strength)
            strength *= 10
            factor, failed = torch.linalg.cholesky_ex(system)
        self.weight = torch.cholesky_solve(self.sums.T.double(), factor).T.to(self.weight)
        return factor

    def _solve_refined(self, strength: float) -> Tensor | None:
        """Solve with a factor in float32 and correct the weights by what is left over, until they are as accurate as float32 holds.

        Return the factor, or None if the weights do not become as accurate as that.
        """
        system = self.gram.clone()
        system.diagonal().add_(strength)
        factor: Tensor
        factor, failed = torch.linalg.cholesky_ex(system)
        if failed:
            return None
        del system
        targets = self.sums.double()  # (C, M)
        weight, rest = torch.zeros_like(targets), targets
        for _ in range(_MAX_CORRECTIONS):
            weight += torch.cholesky_solve(rest.T.float(), factor).T
            rest = targets - strength * weight - self._multiply(weight)
            if rest.norm() <= _ACCURACY * targets.norm():
                self.weight = weight.to(self.weight)
                return factor
        return None

    def _multiply(self, rows: Tensor) -> Tensor:
        """Multiply rows by G in float64: (C, M) -> (C, M). Only blocks up to the diagonal are read, small enough for a cache."""
        product = torch.zeros_like(rows)
        for own, block in self._iter_blocks(_CACHED_ROWS):
            part = block.double()
            product[:, own] += rows[:, : own.stop] @ part.T
            product[:, : own.start] += rows[:, own] @ part[:, : own.start]
        return product

    def forward(self, hidden: Tensor) -> Tensor:
        """Compute logits: (n, M) -> (n, C)."""
        return F.linear(hidden, self.weight.to(hidden))

    def _save_to_state_dict(self, state: dict[str, Any], prefix: str, keep_vars: bool) -> None:
        """Save half of the symmetric G, which is nearly all of a model's file."""
        super()._save_to_state_dict(state, prefix, keep_vars)
        gram = self.stored_gram if self.saves_gram else self.stored_gram[:0, :0]
        state[f"{prefix}gram"] = gram if _is_packed(gram) else pack_symmetric(gram)

    def _load_from_state_dict(
        self,
        state: dict[str, Any],
        prefix: str,
        metadata: Any,
        strict: bool,
        missing: list[str],
        unexpected: list[str],
        errors: list[str],
    ) -> None:
        """Take over G as it was saved: half of it, the whole in older models, or nothing if no images had been seen."""
        name, size = f"{prefix}gram", self.sums.shape[1]
        rest = {key: tensor for key, tensor in state.items() if key != name}
        super()._load_from_state_dict(rest, prefix, metadata, strict, missing, unexpected, errors)
        half = (size + 1) // 2
        if name not in state:
            missing.append(name)
        elif tuple(state[name].shape) not in ((0, 0), (half, 2 * half + 1), (size, size)):
            errors.append(f"size mismatch for {name}: {tuple(state[name].shape)} for {size} features")
        else:
            saved = state[name].to(self.stored_gram)
            self.stored_gram = saved if _is_packed(saved) else saved.clone()  # the whole is added to in place


class RandomRidge(Head):
    """Ridge regression on a random projection of features (n, D) to M dimensions."""

    feature_statistics: ClassVar[tuple[str, ...]] = ("kept_features", "kept_labels")
    #: Buffers that only learning needs.
    learning_state: ClassVar[tuple[str, ...]] = (
        "kept_features",
        "kept_labels",
        *(f"ridge.{name}" for name in RidgeHead.learning_state),
    )

    max_images: ClassVar[int] = _MAX_IMAGES  # of a call that select lambda

    seed: Tensor
    projection: Tensor  # P, (D, M)
    kept_features: Tensor  # f(x) of all images, (n, D); only with `keep_features`
    kept_labels: Tensor  # their classes, (n,)

    def __init__(
        self,
        width: int,
        projections: int,
        relative_strength: float | None = None,
        *,
        keep_features: bool = False,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        """Keep features (`keep_features`) instead of G, which is computed from them: exact, and smaller for few images."""
        super().__init__()
        self.width, self.projections = width, projections
        self.keep_features = keep_features
        self.ridge = RidgeHead(projections, relative_strength, torch.float64 if keep_features else dtype)
        self.ridge.saves_gram = not keep_features
        self.register_buffer("seed", torch.zeros((), dtype=torch.long))
        self.register_buffer("projection", torch.empty(width, 0), persistent=False)
        self._exact_projection: Tensor | None = None
        if keep_features:
            self.register_buffer("kept_features", torch.zeros(0, width))
            self.register_buffer("kept_labels", torch.zeros(0, dtype=torch.long))

    def set_width(self, width: int) -> None:
        """Read features of another width; before the first images."""
        self.width = width
        if self.keep_features:
            self.kept_features = self.kept_features.new_zeros(0, width)
        if len(self.ridge.sums):
            self._draw_projection()

    def _draw_projection(self) -> None:
        """Draw the projection from the seed, the same on every device."""
        rng = torch.Generator().manual_seed(int(self.seed))
        self.projection = torch.randn(self.width, self.projections, generator=rng).to(self.projection)
        self._exact_projection = None

    def _convert_projection(self, dtype: torch.dtype) -> Tensor:
        """Return P in another precision. On a CPU it is converted to float64 once: for one image, that would take the most time."""
        if dtype != torch.float64 or self.projection.device.type != "cpu":
            return self.projection.to(dtype)
        if self._exact_projection is None:
            self._exact_projection = self.projection.double()
        return self._exact_projection

    def _load_from_state_dict(self, state: dict[str, Any], prefix: str, *rest: Any) -> None:
        if self.keep_features and f"{prefix}kept_features" in state:
            num_images = len(state[f"{prefix}kept_features"])
            self.kept_features = self.kept_features.new_zeros(num_images, self.width)
            self.kept_labels = self.kept_labels.new_zeros(num_images)
        super()._load_from_state_dict(state, prefix, *rest)
        self._draw_projection()

    def grow(self, num_classes: int, generator: torch.Generator) -> None:
        """Add new classes; with the first ones the projection is drawn."""
        if not len(self.ridge.sums):
            self.seed.copy_(torch.randint(2**62, (), generator=generator))
            self._draw_projection()
        self.ridge.grow(num_classes, generator)

    def project(self, features: Tensor) -> Tensor:
        """Compute h(x): (n, D) -> (n, M), in the precision of the sums."""
        dtype = torch.promote_types(features.dtype, self.ridge.sums.dtype)
        return F.relu(features.to(dtype) @ self._convert_projection(dtype))

    @torch.no_grad()
    def partial_fit(
        self,
        pairs: Iterable[tuple[Tensor, Tensor]],
        generator: torch.Generator,
        communicator: Communicator = ALONE,
        num_images: int | None = None,
    ) -> Tensor | None:
        """Add batches of features (n, D) and classes (n,) to the sums, select lambda, and solve.

        They count as `num_images` images, to which a relative lambda refers, or each as one. Return the Cholesky factor of the
        system, or None if there was no image. Of several processes, each has its share of the batches (`SharedRows`), and all of
        them get the same regression.
        """
        seen = list(pairs)
        shared = SharedRows([len(labels) for _, labels in seen], communicator)
        if not shared.total:
            return None
        self._restore_gram()
        with self.ridge.share(communicator):
            for features, labels in seen:
                self.ridge.observe(self.project(features), labels)
            if num_images is not None:
                self.ridge.count += num_images - sum(len(labels) for _, labels in seen)
        if self.keep_features:
            self._keep(*shared.gather(self.join(seen), torch.arange(shared.total)))
        if self.ridge.relative_strength is None:
            subset = torch.randperm(shared.total, generator=generator)[: self.max_images]
            features, labels = shared.gather(self.join(seen), subset)
            self.ridge.update_errors(self.project(features), labels)
        return self.ridge.solve()

    def join(self, pairs: Sequence[tuple[Tensor, Tensor]], width: int | None = None) -> tuple[Tensor, Tensor]:
        """Return features (n, D), or of another `width`, and classes (n,) of all batches, of which a process may have none."""
        device = self.projection.device
        features, labels = self.projection.new_zeros(0, width or self.width), torch.zeros(0, dtype=torch.long, device=device)
        return torch.cat([features, *(each for each, _ in pairs)]), torch.cat([labels, *(each for _, each in pairs)])

    @torch.no_grad()
    def leave_out(self, factor: Tensor, rows: Sequence[Tensor], labels: Tensor) -> Callable[[Tensor], Tensor]:
        """Leave each of n images out of the regression in turn; return the function from their features (n, D) to outputs (n, C).

        `rows` are the features by which each image is part of the regression, (n, D) each; `factor` is what `partial_fit`
        returned. With H the r projected rows of an image, K = G + lambda I and A = H K^-1 H^T,

            W without the image = W - K^-1 H^T (I - A)^-1 (Y - H W)
        """
        hidden = [self.project(features).double() for features in rows]
        # One call for all rows: for few columns at a time, a GPU would take longer.
        solved = torch.linalg.solve_triangular(factor, torch.cat(hidden).T.to(factor), upper=False)  # (M, r n)
        parts = solved.unflatten(1, (len(rows), len(labels))).permute(2, 1, 0)
        # One copy for either dtype: `to` makes it of float32, but returns float64 as the view that it is.
        parts = parts.to(torch.float64, memory_format=torch.contiguous_format).contiguous()  # (n, r, M)
        del solved  # not needed any more, and up to as large
        targets = F.one_hot(labels, len(self.ridge.sums)).double()
        residuals = torch.stack([targets - self.ridge(part) for part in hidden], dim=1)  # (n, r, C)
        inner = parts @ parts.mT  # A, (n, r, r)
        system = torch.eye(len(rows), dtype=inner.dtype, device=inner.device) - inner  # (n, r, r)
        changes = torch.linalg.solve(system, residuals)  # (n, r, C)

        @torch.no_grad()
        def compute(features: Tensor) -> Tensor:
            projected = self.project(features).double()
            query = torch.linalg.solve_triangular(factor, projected.T.to(factor), upper=False).double()
            shares = (parts @ query.T.unsqueeze(2)).squeeze(2)  # (n, r)
            outputs: Tensor = self.ridge(projected) - (shares.unsqueeze(1) @ changes).squeeze(1)
            return outputs

        return compute

    @torch.no_grad()
    def compute_left_out_alone(self, views: Sequence[Tensor], labels: Tensor, strength: float) -> Tensor:
        """Compute the outputs of a regression on r views (n, D) of these images alone, each image left out in turn: (n, C).

        The outputs are those for the first view; an image is left out with all of its views. `strength` is lambda relative to the
        mean squared length of the projected views.
        """
        hidden = self.project(torch.cat(list(views))).double()
        kernel = hidden @ hidden.T  # (r n, r n)
        kernel.diagonal().add_(strength * kernel.diagonal().mean())
        inverse = torch.linalg.inv(kernel)
        targets = F.one_hot(labels.repeat(len(views)), len(self.ridge.sums)).double()
        own = torch.arange(len(kernel), device=kernel.device).view(len(views), -1).T  # rows of each image, (n, r)
        residuals = torch.linalg.solve(inverse[own.unsqueeze(2), own.unsqueeze(1)], (inverse @ targets)[own])  # (n, r, C)
        left_out: Tensor = targets[: len(labels)] - residuals[:, 0]
        return left_out

    def _keep(self, features: Tensor, labels: Tensor) -> None:
        self.kept_features = torch.cat([self.kept_features, features.to(self.kept_features)])
        self.kept_labels = torch.cat([self.kept_labels, labels])

    @torch.no_grad()
    def merge(self, other: RandomRidge, classes: Tensor, num_images: int, sign: int = 1) -> None:
        """Add what another regression on the same projection has seen, or take it out again; `refit` then solves.

        It has seen `num_images` images, and its class i is `classes[i]` here.
        """
        if self.keep_features:
            self._keep(other.kept_features, classes[other.kept_labels])  # `refit` computes the sums from them
        else:
            self.ridge.merge(other.ridge, classes, num_images, sign)

    def _restore_gram(self) -> None:
        """Compute the sums from the kept features, class by class, where G was not saved."""
        if not self.keep_features or len(self.ridge.gram) or not len(self.kept_labels):
            return
        self.ridge.sums.zero_()
        if self.ridge.relative_strength is not None:
            self.ridge.count.zero_()
        order = self.kept_labels.argsort(stable=True)
        for rows in order.split(_CHUNK):
            self.ridge.observe(self.project(self.kept_features[rows]), self.kept_labels[rows])

    @torch.no_grad()
    def forget_kept(self, label: int) -> None:
        """Drop the kept features of a class; `refit` then solves without them. Its rows are the caller's to remove."""
        remaining = self.kept_labels != label
        self.kept_features, self.kept_labels = self.kept_features[remaining], self.kept_labels[remaining]
        self.kept_labels = self.kept_labels - (self.kept_labels > label).long()

    @torch.no_grad()
    def refit(self) -> None:
        """Solve again, after rows or images were removed."""
        if self.keep_features:
            self.ridge.gram = self.ridge.gram[:0, :0]
        self._restore_gram()
        if len(self.ridge.gram):
            self.ridge.solve()

    def forward(self, features: Tensor) -> Tensor:
        """Compute logits: (n, D) -> (n, C).

        On a CPU in float64: in float32, sums of thousands of terms would depend on the batch size in the fifth digit. On a GPU,
        where that is slow, predictions do not depend on it for another reason (`backbones.batch_invariance`).
        """
        dtype = torch.float64 if features.device.type == "cpu" else torch.promote_types(features.dtype, torch.float32)
        out: Tensor = self.ridge(F.relu(features.to(dtype) @ self._convert_projection(dtype)))
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


def _is_packed(gram: Tensor) -> bool:
    """Return whether this is half of a symmetric matrix: that is never square."""
    return gram.shape[0] != gram.shape[1]


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
