"""Rows that tasks append: what the newest task learns, and what the earlier ones left behind, frozen for good."""

from __future__ import annotations

import torch
from torch import Tensor, nn

__all__ = ["GrowingRows"]


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

    def forward(self) -> Tensor:
        """All rows, the earliest first; the gradient reaches the newest task's."""
        return torch.cat([self.earlier, self.newest])
