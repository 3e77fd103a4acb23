"""Rows that each task appends to: the newest task's are trained, the earlier ones frozen."""

from __future__ import annotations

import torch
from torch import Tensor, nn

__all__ = ["GrowingRows", "draw_orthonormal_rows"]


class GrowingRows(nn.Module):
    """Rows of one shape from each task: a parameter for the newest, a buffer for the others."""

    def __init__(self, *shape: int) -> None:
        super().__init__()
        self.newest = nn.Parameter(torch.empty(0, *shape))
        self.register_buffer("earlier", torch.empty(0, *shape))

    earlier: Tensor

    def append(self, rows: Tensor) -> None:
        """Freeze the existing rows and add these (n, *shape) as the new task's."""
        self.earlier = self().detach()
        self.newest = nn.Parameter(rows.to(self.earlier))

    def append_from_newest(self, first: Tensor) -> None:
        """Append a copy of the newest task's rows; the first task's are `first` (n, *shape)."""
        self.append(self.newest.detach() if len(self.newest) else first)

    def forward(self) -> Tensor:
        """Return all rows, the earliest first; only the newest task's get a gradient."""
        return torch.cat([self.earlier, self.newest])


def draw_orthonormal_rows(count: int, earlier: Tensor, generator: torch.Generator) -> Tensor:
    """Draw random unit rows (count, F) by Gram-Schmidt.

    They are orthogonal to each other and to the `earlier` rows (M, F). At most F rows can be
    orthogonal. Beyond that, a row is orthogonal to as many of the latest ones as possible.
    """
    rows = earlier.detach().cpu().double()
    for drawn in torch.randn(count, rows.shape[1], generator=generator).double().split(rows.shape[1]):
        room = rows.shape[1] - len(drawn)
        latest = rows[max(len(rows) - room, 0) :]
        # The Q of a QR decomposition equals Gram-Schmidt column by column, and is also correct if
        # the earlier rows are not orthogonal to each other.
        basis = torch.linalg.qr(torch.cat([latest, drawn]).T).Q  # (F, latest + drawn)
        rows = torch.cat([rows, basis[:, len(latest) :].T])
    return rows[len(earlier) :].to(earlier)
