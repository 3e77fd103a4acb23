"""How many of the last blocks a regression should read the class token of, decided by the images of the first task.

The class token after the last block is what the backbone was trained to classify with. Where that was a task unlike the new one,
earlier blocks still know what the last one has thrown away, as for ImageNet classes and types of cars; where it was general, as for
CLIP, they only add noise. So the images decide, by the squared error of a ridge regression that leaves each image out in turn, on
features of the frozen backbone: half of the blocks are read unless that error is clearly lower with fewer. docs/experiments.md has
the figures.

The regression is the limit of infinitely many random rectified projections, whose kernel is known in closed form (Cho and Saul,
Kernel Methods for Deep Learning, 2009): nothing here is random.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import accumulate

import torch
import torch.nn.functional as F
from torch import Tensor

from caprompt.utils.threads import map_on_device

__all__ = ["SHARES", "compute_kernel", "compute_left_out_errors", "find_lowest", "list_candidates", "select_num_blocks"]

SHARES = (6, 3, 2)  # a sixth, a third, or half of the blocks


def list_candidates(depth: int) -> list[int]:
    """Return numbers of blocks to choose from, for a backbone of this depth; the last block alone comes first.

    >>> list_candidates(12), list_candidates(6), list_candidates(2)
    ([1, 2, 4, 6], [1, 2, 3], [1])
    """
    return sorted({1, *(max(1, depth // share) for share in SHARES)})


@torch.no_grad()
def select_num_blocks(blocks: Tensor, labels: Tensor, strength: float, candidates: Sequence[int]) -> int:
    """Select the number of blocks for class tokens (n, K, D), the last block last, from increasing candidates.

    It is the largest, unless that of lowest left-out error lowers it by more than its standard error. Images of classes with a
    single image say nothing, since without it their class is unknown; where no two classes have more, it is the smallest.
    """
    counts = labels.bincount()
    tells = counts[labels] > 1
    if int((counts > 1).sum()) < 2:
        return candidates[0]
    tokens = blocks.double().flip(1).unbind(1)[: candidates[-1]]  # (n, D) each, the last block first
    products = list(accumulate(each @ each.T for each in tokens))  # of one block, of two, ...

    def compute_errors(count: int) -> Tensor:
        return compute_left_out_errors(products[count - 1], labels, strength)[tells]

    errors = map_on_device(compute_errors, candidates, blocks.device)
    return candidates[-1 - find_lowest(errors[::-1])]


def find_lowest(errors: Sequence[Tensor]) -> int:
    """Return the position of the lowest mean error of images (n,), or the first if that gains no more than its standard error."""
    best = min(range(len(errors)), key=lambda i: float(errors[i].mean()))
    gain = errors[0] - errors[best]
    return best if gain.mean() > gain.std() / math.sqrt(len(gain)) else 0


def compute_kernel(products: Tensor, squares: Tensor, other_squares: Tensor) -> Tensor:
    """Return the kernel of infinitely many random rectified projections, from inner products (n, m) and squared lengths (n,), (m,).

    >>> one = torch.ones(1, dtype=torch.float64)
    >>> compute_kernel(one.unsqueeze(1), one, one).item()
    0.5
    """
    tiny = torch.finfo(products.dtype).tiny
    scale = squares.clamp_min(tiny).sqrt().unsqueeze(1) * other_squares.clamp_min(tiny).sqrt()
    cosine = (products / scale).clamp(-1, 1)
    angle = cosine.acos()
    kernel: Tensor = scale * (angle.sin() + (math.pi - angle) * cosine) / (2 * math.pi)
    return kernel


def compute_left_out_errors(products: Tensor, labels: Tensor, strength: float, num_views: int = 1) -> Tensor:
    """Return the squared error of the regression for each image that is left out, with all of its r views: (n,).

    `products` are inner products of the rows (r n, r n), one view of all images after the other; the error is that of the first
    view. `strength` is lambda relative to the mean of the kernel's diagonal, summed over the views of an image. Outputs are first
    scaled by the factor that suits all images best: a regression on more inputs varies less, which lowers its error even if they
    are noise, and the scale has no influence on the predicted class.

    >>> tokens = torch.tensor([[1.0, 0.0], [1.0, 0.1], [0.0, 1.0], [0.1, 1.0]], dtype=torch.float64)
    >>> errors = compute_left_out_errors(tokens @ tokens.T, torch.tensor([0, 0, 1, 1]), 0.1)
    >>> bool((errors < 0.1).all())
    True
    """
    squares = products.diagonal()
    kernel = compute_kernel(products, squares, squares)
    kernel.diagonal().add_(strength * num_views * kernel.diagonal().mean())
    inverse = torch.linalg.inv_ex(kernel).inverse  # which does not raise for features that are not finite: the regression does
    targets = F.one_hot(labels).to(kernel)
    own = torch.arange(len(kernel), device=kernel.device).view(num_views, -1).T  # rows of each image, (n, r)
    weights = (inverse @ targets.repeat(num_views, 1))[own]  # (n, r, C)
    outputs = targets - torch.linalg.solve_ex(inverse[own.unsqueeze(2), own.unsqueeze(1)], weights).result[:, 0]
    targets, outputs = targets - targets.mean(dim=0), outputs - outputs.mean(dim=0)
    factor = ((outputs * targets).sum() / outputs.square().sum().clamp_min(torch.finfo(outputs.dtype).tiny)).clamp_min(0)
    errors: Tensor = (targets - factor * outputs).square().sum(dim=1)
    return errors
