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
        if prefix is not None and change is None and known is None and self.leaves_room(x):
            query, key, value = self.project(x, at, room=prefix[0].shape[1])
            key[:, : prefix[0].shape[1]], value[:, : prefix[1].shape[1]] = (rows.to(key.dtype) for rows in prefix)
        else:
            query, key, value = self.changed(*self.project(x, at, known=known), change, at)
            if prefix is not None:
                # A gradient needs the queries, but not the keys and values beside them once a prefix is put in front of those.
                query = query.contiguous() if x.is_cuda and torch.is_grad_enabled() else query
                key, value = (torch.cat([rows.to(x.dtype), own], dim=1) for rows, own in zip(prefix, (key, value), strict=True))
        mixed = F.scaled_dot_product_attention(self.split(query), self.split(key), self.split(value))
        out: Tensor = self.proj(mixed.transpose(1, 2).flatten(2))  # (B, H, N, d) -> (B, N, D)
        return out

    def leaves_room(self, x: Tensor) -> bool:
        """Are rows of a prefix written into the product?"""
        return x.is_cuda and not torch.is_grad_enabled()

    def project(self, x: Tensor, at: int | None, known: Tensor | None = None, room: int = 0) -> tuple[Tensor, Tensor, Tensor]:
        """Queries (B, N or 1, D), keys and values (B, room + N, D); what stands in the room is to be overwritten."""
        width, weight, bias = x.shape[2], self.qkv.weight, self.qkv.bias
        padded = F.pad(x, (0, 0, room, 0)) if room else x
        if at is None or known is not None:
            all_three = self.qkv(padded) if known is None else known
            query, rest = all_three[:, room:, :width], all_three[..., width:]
            query = query if at is None else query[:, at].unsqueeze(1)
        else:
            query = F.linear(x[:, at].unsqueeze(1), weight[:width], bias[:width])
            rest = F.linear(padded, weight[width:], bias[width:])
        return query, rest[..., :width], rest[..., width:]

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
