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

__all__ = ["FilterBank", "orthonormal_rows"]


class FilterBank(nn.Module):
    """The filters of all tasks: the newest task's learn, the others are buffers."""

    def __init__(self, layers: int, heads: int, kernel: int, key_width: int) -> None:
        super().__init__()
        places = (layers, 2, heads)  # a layer, its keys or values, one head
        shapes = {"weight": (*places, 0, kernel, kernel), "bias": (*places, 0), "keys": (0, key_width)}
        for name, shape in shapes.items():
            self.register_parameter(name, nn.Parameter(torch.zeros(shape)))
            self.register_buffer(f"old_{name}", torch.zeros(shape))

    weight: nn.Parameter  # (L, 2, H, F, k, k)
    bias: nn.Parameter  # (L, 2, H, F)
    keys: nn.Parameter  # (F, K)
    old_weight: Tensor
    old_bias: Tensor
    old_keys: Tensor

    def grow(self, count: int, generator: torch.Generator) -> None:
        """Freeze what there is and add so many filters; the new keys are orthonormal, to the old ones too while there is room."""
        self.old_weight = torch.cat([self.old_weight, self.weight.detach()], dim=3)
        self.old_bias = torch.cat([self.old_bias, self.bias.detach()], dim=3)
        self.old_keys = torch.cat([self.old_keys, self.keys.detach()])
        places, kernel = self.weight.shape[:3], self.weight.shape[-1]
        weight = linear_start((*places, count, kernel, kernel), kernel**2, generator)
        bias = linear_start((*places, count), kernel**2, generator)
        self.weight, self.bias = nn.Parameter(weight.to(self.weight)), nn.Parameter(bias.to(self.bias))
        self.keys = nn.Parameter(orthonormal_rows(self.old_keys.cpu(), count, generator).to(self.keys))

    def all_keys(self) -> Tensor:
        """Keys of all filters, the earliest first: (F, K)."""
        return torch.cat([self.old_keys, self.keys])

    def forward(self, embedding: Tensor) -> Tensor:
        """What every filter makes of the embeddings: (L, 2, H, n + k - 1, d + k - 1) -> (L, F, 2, n, D)."""
        made = convolved(embedding, self.weight, self.bias)
        if self.old_bias.shape[3]:  # apart, so that no gradient is computed for frozen filters
            made = torch.cat([convolved(embedding, self.old_weight, self.old_bias), made], dim=3)
        return made.permute(0, 3, 1, 4, 2, 5).flatten(4)  # (L, 2, H, F, n, d) -> (L, F, 2, n, H d)


def convolved(embedding: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Each place's embedding under each of its own filters, as one convolution with a group for each place: (L, 2, H, F, n, d)."""
    places = embedding.flatten(0, 2)  # (L 2 H, n + k - 1, d + k - 1)
    made = F.conv2d(places.unsqueeze(0), weight.flatten(0, 3).unsqueeze(1), bias.flatten(), groups=places.shape[0])
    return made.reshape(*bias.shape, *made.shape[2:])


def orthonormal_rows(old: Tensor, count: int, generator: torch.Generator) -> Tensor:
    """New rows (count, K) of length one, at right angles to each other and to all old ones (m, K).

    Where K dimensions have no room left, the rest of the rows point anywhere.
    """
    drawn = torch.randn(count, old.shape[1], generator=generator)
    basis, _ = torch.linalg.qr(torch.cat([old, drawn]).T)  # columns in turn, (K, min(K, m + count))
    fitting = basis[:, old.shape[0] :].T
    return torch.cat([fitting, F.normalize(drawn[fitting.shape[0] :], dim=1)])
