"""Filters that grow task by task, for ConvPrompt: each makes a piece of prompt from an embedding, and each has a key.

A filter is a k x k convolution for each layer, for keys and values, and for each head. What it makes does not depend on an image,
so all filters are applied at once, as one grouped convolution. Those of earlier tasks are frozen, and so are their keys.

Shapes: L layers, H heads of d = D / H, n rows, F filters, K width of the keys.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from caprompt.methods.base import linear_start
from caprompt.methods.components.growing_rows import GrowingRows, orthonormal_rows

__all__ = ["FilterBank"]


class FilterBank(nn.Module):
    """The filters of all tasks; the newest task's learn."""

    def __init__(self, layers: int, heads: int, kernel: int, key_width: int) -> None:
        super().__init__()
        self.weight = GrowingRows(layers, 2, heads, kernel, kernel)  # (F, L, 2, H, k, k): a layer, its keys or values, one head
        self.bias = GrowingRows(layers, 2, heads)  # (F, L, 2, H)
        self.keys = GrowingRows(key_width)  # (F, K)

    def grow(self, count: int, generator: torch.Generator) -> None:
        """Freeze what there is and add so many filters; their keys start orthogonal to all others, as far as there is room."""
        inputs = self.weight.newest.shape[-1] ** 2
        for rows in (self.weight, self.bias):
            rows.append(linear_start((count, *rows.newest.shape[1:]), inputs, generator))
        self.keys.append(orthonormal_rows(count, self.keys(), generator))

    def forward(self, embedding: Tensor) -> Tensor:
        """What every filter makes of the embeddings: (L, 2, H, n + k - 1, d + k - 1) -> (L, F, 2, n, D)."""
        made = convolved(embedding, self.weight.newest, self.bias.newest)
        if len(self.bias.earlier):  # apart, so that no gradient is computed for frozen filters
            made = torch.cat([convolved(embedding, self.weight.earlier, self.bias.earlier), made], dim=3)
        return made.permute(0, 3, 1, 4, 2, 5).flatten(4)  # (L, 2, H, F, n, d) -> (L, F, 2, n, H d)


def convolved(embedding: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Each place's embedding under each of its own filters, as one convolution with a group for each place: (L, 2, H, F, n, d)."""
    places, weight, bias = embedding.flatten(0, 2), weight.movedim(0, 3), bias.movedim(0, 3)  # (L 2 H, n + k - 1, d + k - 1), ...
    made = F.conv2d(places.unsqueeze(0), weight.flatten(0, 3).unsqueeze(1), bias.flatten(), groups=places.shape[0])
    return made.reshape(*bias.shape, *made.shape[2:])
