"""Heat maps by removing patches: which parts of an image speak for one class against another.

Copies of an image, each without a random set of its patches, are predicted like any other images, so
this works for every method and needs no gradient. A patch is removed by painting it in the mean color
of the image. With r_j = 1 where patch j is removed, a ridge regression over the copies

    margin(r)  ~  constant - sum_j heat_j r_j

gives each patch the amount by which its removal lowers the margin, on average over what else is
missing. The margin is the logit of one class minus that of the other.

Half of the copies lack patches from everywhere. The other half look closer: they lack mostly patches
that the first half has marked, which tells these apart. docs/explain.md compares this with other
schemes.

Shapes: K copies, R x R patches, S image side.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from caprompt.utils.random import make_generator

__all__ = ["HeatMap", "compute_heat_map", "draw_closer_removals", "draw_removals", "fit_heat", "remove_patches", "select_hottest"]

Margin = Callable[[Tensor], Tensor]  # images (K, 3, S, S) -> margins (K,)

REMOVED_SHARE = (0.05, 0.6)  # of the patches, in a copy of the first half
HOT_SHARE = 0.4  # of the patches: those that the second half looks at
HOT_PROBABILITY, OTHER_PROBABILITY = 0.5, 0.12  # of removal in a copy of the second half
MAX_CELLS = 16  # along a side; smaller patches are removed several at a time
RIDGE_STRENGTH = 0.1  # lambda, per copy


@dataclass(frozen=True)
class HeatMap:
    """The heat of every patch, and how well the regression behind it predicts copies that it was not fitted to."""

    heat: Tensor  # (R, R), on the CPU in float64
    fit: float  # 1 - squared error / variance of the margins, each copy left out in turn; 1 is perfect, 0 is none


def compute_heat_map(margin: Margin, image: Tensor, grid: int, copies: int, batch_size: int) -> HeatMap:
    """Compute the heat map of an image (3, S, S); the same image and margin always give the same map."""

    def compute_margins(removals: Tensor) -> Tensor:
        return torch.cat([margin(remove_patches(image, part)).double().cpu() for part in removals.split(batch_size)])

    generator = make_generator(0, "explain")
    removals = draw_removals(copies - copies // 2, grid, generator)
    margins = compute_margins(removals)
    closer = draw_closer_removals(fit_heat(removals, margins).heat, copies // 2, generator)
    return fit_heat(torch.cat([removals, closer]), torch.cat([margins, compute_margins(closer)]))


def draw_removals(copies: int, grid: int, generator: torch.Generator) -> Tensor:
    """Draw which patches each copy lacks, any share of them: (K, R, R), true where removed."""
    cell = _choose_cell(grid)
    low, high = REMOVED_SHARE
    shares = low + (high - low) * torch.rand(copies, 1, 1, generator=generator)
    return _enlarge(torch.rand(copies, -(-grid // cell), -(-grid // cell), generator=generator) < shares, cell, grid)


def draw_closer_removals(heat: Tensor, copies: int, generator: torch.Generator) -> Tensor:
    """Draw which patches each copy lacks, mostly of the hottest ones of a first map (R, R): (K, R, R)."""
    grid = len(heat)
    cell = _choose_cell(grid)
    is_hot = select_hottest(heat[::cell, ::cell], HOT_SHARE)
    probabilities = torch.where(is_hot, HOT_PROBABILITY, OTHER_PROBABILITY)
    return _enlarge(torch.rand(copies, *is_hot.shape, generator=generator) < probabilities, cell, grid)


def remove_patches(image: Tensor, removals: Tensor) -> Tensor:
    """Return a copy of an image (3, S, S) for every set of patches (K, R, R), painted in its mean color: (K, 3, S, S).

    >>> remove_patches(torch.tensor([[[1.0, 2.0], [3.0, 6.0]]]), torch.tensor([[[False, True], [False, False]]])).tolist()
    [[[[1.0, 3.0], [3.0, 6.0]]]]
    """
    patch = image.shape[-1] // removals.shape[-1]
    pixels = _enlarge(removals, patch, image.shape[-1]).unsqueeze(1).to(image.device)  # (K, 1, S, S)
    return torch.where(pixels, image.mean(dim=(1, 2), keepdim=True), image)


def fit_heat(removals: Tensor, margins: Tensor) -> HeatMap:
    """Fit the regression to removed patches (K, R, R) and margins (K,).

    It is solved in its dual form, (K, K), since there may be more patches than copies.
    """
    count, grid = removals.shape[:2]
    inputs = removals.double().flatten(1)
    inputs, targets = inputs - inputs.mean(dim=0), margins.double() - margins.double().mean()
    penalty = RIDGE_STRENGTH * count
    inverse = torch.linalg.inv(inputs @ inputs.T + penalty * torch.eye(count, dtype=torch.double))
    weights = inverse @ targets  # (K,)
    # The error of a copy under the regression on all others: its residual over one minus its leverage.
    errors = penalty * weights / (penalty * inverse.diagonal() - 1 / count)
    variance = float(targets.square().sum())
    return HeatMap(-(inputs.T @ weights).view(grid, grid), 1 - float(errors.square().sum()) / variance if variance else 0.0)


def select_hottest(heat: Tensor, share: float) -> Tensor:
    """Return which patches are the hottest share of a map: (R, R), true for these.

    >>> select_hottest(torch.tensor([[0.0, 3.0], [2.0, -4.0]]), 0.5).tolist()
    [[False, True], [True, False]]
    """
    selected = torch.zeros(heat.numel(), dtype=torch.bool)
    selected[heat.flatten().argsort(descending=True, stable=True)[: round(share * heat.numel())]] = True
    return selected.view_as(heat)


def _choose_cell(grid: int) -> int:
    """Return how many patches along a side are removed together.

    >>> [_choose_cell(grid) for grid in (8, 16, 37)]
    [1, 1, 3]
    """
    return -(-grid // MAX_CELLS)


def _enlarge(cells: Tensor, factor: int, side: int) -> Tensor:
    """Repeat every cell in both directions, and cut off what is beyond the side: (K, n, n) -> (K, side, side)."""
    return cells.repeat_interleave(factor, dim=1).repeat_interleave(factor, dim=2)[:, :side, :side]
