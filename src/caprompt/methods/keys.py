"""Learned keys: how a query is compared with them, and how new ones start apart from the old ones."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

__all__ = ["cosine", "orthonormal_rows"]


def cosine(query: Tensor, keys: Tensor) -> Tensor:
    """The cosine of every query with every key: (B, D), (M, D) -> (B, M).

    >>> cosine(torch.tensor([[2.0, 0.0]]), torch.tensor([[1.0, 0.0], [0.0, 3.0], [-5.0, 0.0]]))
    tensor([[ 1.,  0., -1.]])
    """
    return F.normalize(query, dim=1) @ F.normalize(keys, dim=1).T


def orthonormal_rows(count: int, earlier: Tensor, generator: torch.Generator) -> Tensor:
    """`count` random unit rows, orthogonal to each other and to the `earlier` rows (M, F), by Gram-Schmidt: (count, F).

    No more than F rows can be orthogonal. Beyond that, a row is orthogonal to as many of the latest ones as there is room for.
    """
    rows = earlier.detach().cpu().double()
    for drawn in torch.randn(count, rows.shape[1], generator=generator).double().split(rows.shape[1]):
        room = rows.shape[1] - len(drawn)
        latest = rows[max(len(rows) - room, 0) :]
        # The Q of a QR decomposition is what Gram-Schmidt gives, column by column, and is exact where earlier rows are not
        # orthogonal to each other.
        basis = torch.linalg.qr(torch.cat([latest, drawn]).T).Q  # (F, latest + drawn)
        rows = torch.cat([rows, basis[:, len(latest) :].T])
    return rows[len(earlier) :].to(earlier)
