"""Linear maps as a compiler likes them."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

__all__ = ["mapped"]


def mapped(layer: nn.Module, x: Tensor) -> Tensor:
    """A linear map of x, (..., D) -> (..., M). A compiler sees the bias apart: it adds it in the kernel that reads the product.

    >>> layer = nn.Linear(3, 2)
    >>> x = torch.ones(4, 3)
    >>> torch.equal(mapped(layer, x), layer(x))
    True
    """
    if torch.compiler.is_compiling() and type(layer) is nn.Linear and layer.bias is not None:
        return F.linear(x, layer.weight) + layer.bias
    out: Tensor = layer(x)
    return out
