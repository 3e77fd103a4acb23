"""How strong the regression on few images should be, decided by the images themselves.

Where the backbone separates the classes well, a strong regularization is best, close to a nearest-class-mean classifier; where it
does not, as with types of cars, it costs up to ten points. So each call compares a few strengths by the squared error of a
regression that leaves each of its images out in turn, and the errors are summed over calls. `USUAL` is used unless another strength
lowers the error by more than its standard error. It is also used with fewer than `MIN_OF_CLASS` images of a class: without one of
two or three, the best strength is another than with it. docs/experiments.md has the figures.

A strength is lambda relative to the summed squared length of the rows by which an image is part of the regression: its views, and
the passes over them. They are so much alike that together they say little more than one of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import torch
from torch import Tensor

from caprompt.methods.components.readout import compute_left_out_errors
from caprompt.utils.threads import map_on_device

__all__ = ["STRENGTHS", "USUAL", "choose_images", "make_evidence", "select_strength"]

STRENGTHS = (0.01, 0.03, 0.1, 0.3, 1.0)
USUAL = 0.1
MAX_ROWS = 1_200  # of all views of the images that are left out, so that a CPU takes a second
MIN_OF_CLASS = 5  # images; fewer are not left out
MAX_OF_CLASS = 10  # images that are left out


def select_strength(evidence: Tensor) -> float:
    """Return the strength of lowest error by the summed evidence (3, S), or the usual one if that gains too little.

    >>> select_strength(torch.zeros(3, len(STRENGTHS), dtype=torch.float64))
    0.1
    >>> gains = torch.tensor([[0.0, 0.0, 0.0, 0.5, 0.4]] * 8).double()
    >>> select_strength(torch.stack([gains.sum(0), gains.square().sum(0), torch.full((5,), 8.0)]))
    0.3
    """
    gain, squares, count = evidence
    best = int(gain.argmax())
    mean = gain[best] / count[best].clamp_min(1)
    variance = (squares[best] / count[best].clamp_min(1) - mean**2).clamp_min(0)
    return STRENGTHS[best] if mean > (variance / count[best].clamp_min(1)).sqrt() else USUAL


@torch.no_grad()
def make_evidence(views: Sequence[Tensor], labels: Tensor) -> Tensor:
    """Compare the strengths on r views (n, D) of images of classes (n,), each of which has two images at least.

    Return for each strength how much lower than with the usual one the errors of the left-out images are, summed, the sum of the
    squares of that, and the number of images: (3, S).
    """
    rows = torch.cat(list(views)).double()
    products = rows @ rows.T
    compute = partial(compute_left_out_errors, products, labels, num_views=len(views))
    errors = torch.stack(map_on_device(compute, STRENGTHS, products.device))  # (S, n)
    gains = errors[STRENGTHS.index(USUAL)] - errors
    return torch.stack([gains.sum(dim=1), gains.square().sum(dim=1), torch.full_like(gains[:, 0], len(labels))])


def choose_images(labels: Tensor, num_views: int, generator: torch.Generator) -> Tensor:
    """Return positions of images (n,) to compare the strengths on: as many as their views fit in `MAX_ROWS`.

    There are none if fewer than two classes have `MIN_OF_CLASS` images.

    >>> choose_images(torch.tensor([0] * 5 + [1] * 4 + [2] * 5), 6, torch.Generator()).tolist()
    [0, 1, 2, 3, 4, 9, 10, 11, 12, 13]
    >>> choose_images(torch.tensor([0] * 5 + [1] * 4), 6, torch.Generator()).tolist()
    []
    """
    order = torch.randperm(len(labels), generator=generator)
    groups = [
        own[:MAX_OF_CLASS] for own in (order[labels[order] == label] for label in labels.unique()) if len(own) >= MIN_OF_CLASS
    ]
    groups = [groups[place] for place in torch.randperm(len(groups), generator=generator)]
    num_rows, chosen = 0, list[Tensor]()
    for group in groups:
        num_rows += num_views * len(group)
        if num_rows <= MAX_ROWS or len(chosen) < 2:
            chosen.append(group)
    return torch.cat(chosen).sort().values if len(chosen) > 1 else order[:0]
