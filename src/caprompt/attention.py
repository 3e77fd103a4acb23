"""Self-attention of a ViT block, which may be given further keys and values per image.

Where nothing is kept for a gradient, a GPU has better to do than to copy all keys and values behind a few rows: the product leaves
room for these rows, at the price of a few rows more, and they are written into it. With a gradient that was slower.

Shapes: B images, N tokens, n rows of a prefix, D width, H heads of d = D / H.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

__all__ = ["Attention"]


class Attention(nn.Module):
    """Queries, keys and values by one product, heads side by side, and a product behind them; timm's names."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width)
        self.proj = nn.Linear(width, width)

    def forward(
        self,
        x: Tensor,
        prefix: tuple[Tensor, Tensor] | None = None,
        change: Tensor | None = None,
        at: int | None = None,
        known: Tensor | None = None,
    ) -> Tensor:
        """Normed tokens (B, N, D) -> (B, N, D), or (B, 1, D) for the token `at` alone.

        `prefix` are keys and values in front, (B, n, D) each; `change` is added to queries, keys and values, (B, N, 3 D); `known`
        are these, where they have been computed before.
        """
        if prefix is not None and change is None and known is None and not torch.is_grad_enabled() and x.is_cuda:
            query, key, value = self.project_beside(x, prefix, at)
        else:
            query, key, value = self.changed(*self.project(x, at, known), change, at)
            if prefix is not None:
                # A gradient needs the queries, but not the keys and values beside them once a prefix is put in front of those.
                query = query.contiguous() if x.is_cuda and torch.is_grad_enabled() else query
                key, value = (torch.cat([rows.to(x.dtype), own], dim=1) for rows, own in zip(prefix, (key, value), strict=True))
        mixed = F.scaled_dot_product_attention(self.split(query), self.split(key), self.split(value))
        out: Tensor = self.proj(mixed.transpose(1, 2).flatten(2))  # (B, H, N, d) -> (B, N, D)
        return out

    def project(self, x: Tensor, at: int | None, known: Tensor | None = None) -> tuple[Tensor, Tensor, Tensor]:
        """Queries (B, N or 1, D), keys and values (B, N, D)."""
        if at is not None and known is None:
            width, weight, bias = x.shape[2], self.qkv.weight, self.qkv.bias
            query = F.linear(x[:, at].unsqueeze(1), weight[:width], bias[:width])
            key, value = F.linear(x, weight[width:], bias[width:]).chunk(2, dim=2)
        else:
            query, key, value = (self.qkv(x) if known is None else known).chunk(3, dim=2)
            query = query if at is None else query[:, at].unsqueeze(1)
        return query, key, value

    def project_beside(self, x: Tensor, prefix: tuple[Tensor, Tensor], at: int | None) -> tuple[Tensor, Tensor, Tensor]:
        """The same with n rows in front of keys and values, which the product has left room for: (B, n + N, D)."""
        room = prefix[0].shape[1]
        query, key, value = self.project(F.pad(x, (0, 0, room, 0)), at)
        for rows, own in zip(prefix, (key, value), strict=True):
            own[:, :room] = rows
        return query[:, room:] if at is None else query, key, value

    def changed(self, query: Tensor, key: Tensor, value: Tensor, change: Tensor | None, at: int | None) -> tuple[Tensor, ...]:
        """Each with its part of the change."""
        if change is None:
            return query, key, value
        to_query, to_key, to_value = change.to(key.dtype).chunk(3, dim=2)
        return query + (to_query if at is None else to_query[:, at].unsqueeze(1)), key + to_key, value + to_value

    def split(self, x: Tensor) -> Tensor:
        """(B, n, D) -> (B, H, n, d)."""
        parts: Tensor = x.unflatten(2, (self.heads, -1))
        return parts.transpose(1, 2)
