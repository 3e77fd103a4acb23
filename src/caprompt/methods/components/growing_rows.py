"""Rows that tasks append: what the newest task learns, and what the earlier ones left behind, frozen for good."""

from __future__ import annotations

import torch
from torch import Tensor, nn

__all__ = ["GrowingRows", "orthonormal_rows"]


class GrowingRows(nn.Module):
    """Rows of one shape, some from each task. Only the newest task's are a parameter; the earlier ones are a buffer."""

    def __init__(self, *shape: int) -> None:
        super().__init__()
        self.newest = nn.Parameter(torch.empty(0, *shape))
        self.register_buffer("earlier", torch.empty(0, *shape))

    earlier: Tensor

    def append(self, rows: Tensor) -> None:
        """Freeze what there is; these rows (n, *shape) are the new task's."""
        self.earlier = self().detach()
        self.newest = nn.Parameter(rows.to(self.earlier))

    def go_on(self, first: Tensor) -> None:
        """Append rows that start where the newest task's are now; the very first task's start as `first` (n, *shape)."""
        self.append(self.newest.detach() if len(self.newest) else first)

    def forward(self) -> Tensor:
        """All rows, the earliest first; the gradient reaches the newest task's."""
        return torch.cat([self.earlier, self.newest])


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
