"""Self-attention of a ViT block, which may be given further keys and values per image.

Where nothing is kept for a gradient, a GPU has better to do than to copy all keys and values behind a few rows: the product leaves
room for these rows, at the price of a few rows more, and they are written into it (`attend_beside`).

Shapes: B images, N tokens, n rows of a prefix, D width, H heads of d = D / H.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from caprompt.backbones.layers import linear

__all__ = ["Attention", "attend_beside"]


@torch.library.custom_op(
    "caprompt::attend_beside",
    mutates_args=("projected",),
    schema="(Tensor(a0!) projected, Tensor keys, Tensor values, SymInt heads, Tensor? query=None) -> Tensor",
)
def attend_beside(projected: Tensor, keys: Tensor, values: Tensor, heads: int, query: Tensor | None = None) -> Tensor:
    """Attention over keys and values behind a prefix, (B, n, D) each, which is written into the room left for it: (B, N, D).

    `projected` are queries, keys and values, (B, n + N, 3 D), the first n rows being room; or the latter two, beside a `query`.
    One operator for compilers as well, which would copy all that they see changed in part.
    """
    room, width = keys.shape[1:]
    key, value = projected[..., -2 * width :].chunk(2, dim=2)
    key[:, :room], value[:, :room] = keys, values
    return attend(projected[:, room:, :width] if query is None else query, key, value, heads).contiguous()


@attend_beside.register_fake
def _(projected: Tensor, keys: Tensor, values: Tensor, heads: int, query: Tensor | None = None) -> Tensor:
    images, rows, _ = projected.shape
    room, width = keys.shape[1:]
    return projected.new_empty(images, rows - room if query is None else query.shape[1], width)


def attend(query: Tensor, key: Tensor, value: Tensor, heads: int) -> Tensor:
    """Heads side by side: (B, N, D) each -> (B, N, D)."""
    mixed = F.scaled_dot_product_attention(split(query, heads), split(key, heads), split(value, heads))
    return mixed.transpose(1, 2).flatten(2)  # (B, H, N, d) -> (B, N, D)


def split(x: Tensor, heads: int) -> Tensor:
    """(B, n, D) -> (B, H, n, d)."""
    parts: Tensor = x.unflatten(2, (heads, -1))
    return parts.transpose(1, 2)


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
            mixed = self.mixed_beside(x, prefix, at)
        else:
            query, key, value = self.changed(*self.project(x, at, known), change, at)
            if prefix is not None:
                # A gradient needs the queries, but not the keys and values beside them once a prefix is put in front of those.
                query = query.contiguous() if x.is_cuda and torch.is_grad_enabled() else query
                key, value = (torch.cat([rows.to(x.dtype), own], dim=1) for rows, own in zip(prefix, (key, value), strict=True))
            mixed = attend(query, key, value, self.heads)
        return linear(self.proj, mixed)

    def project(self, x: Tensor, at: int | None, known: Tensor | None = None) -> tuple[Tensor, Tensor, Tensor]:
        """Queries (B, N or 1, D), keys and values (B, N, D)."""
        if at is not None and known is None:
            query, both = self.project_apart(x[:, at].unsqueeze(1), x)
            key, value = both.chunk(2, dim=2)
        else:
            query, key, value = (self.qkv(x) if known is None else known).chunk(3, dim=2)
            query = query if at is None else query[:, at].unsqueeze(1)
        return query, key, value

    def project_apart(self, asking: Tensor, asked: Tensor) -> tuple[Tensor, Tensor]:
        """Queries of some tokens, (B, M, D), and keys and values, side by side, of others: (B, N, 2 D)."""
        width, weight, bias = asking.shape[2], self.qkv.weight, self.qkv.bias
        return F.linear(asking, weight[:width], bias[:width]), F.linear(asked, weight[width:], bias[width:])

    def mixed_beside(self, x: Tensor, prefix: tuple[Tensor, Tensor], at: int | None) -> Tensor:
        """Values mixed by attention, with a prefix that the product of keys and values leaves room for: (B, N or 1, D)."""
        keys, values = (rows.to(x.dtype) for rows in prefix)
        padded = behind_room(x, keys.shape[1])
        query, projected = (None, self.qkv(padded)) if at is None else self.project_apart(x[:, at].unsqueeze(1), padded)
        mixed: Tensor = attend_beside(projected, keys, values, self.heads, query)
        return mixed

    def changed(self, query: Tensor, key: Tensor, value: Tensor, change: Tensor | None, at: int | None) -> tuple[Tensor, ...]:
        """Each with its part of the change."""
        if change is None:
            return query, key, value
        to_query, to_key, to_value = change.to(key.dtype).chunk(3, dim=2)
        return query + (to_query if at is None else to_query[:, at].unsqueeze(1)), key + to_key, value + to_value


def behind_room(x: Tensor, rows: int) -> Tensor:
    """(B, N, D) -> (B, rows + N, D), the first rows being zeros."""
    if torch.compiler.is_compiling():  # what x is computed by can then write into its place at once
        return torch.cat([x.new_zeros(x.shape[0], rows, x.shape[2]), x], dim=1)
    return F.pad(x, (0, 0, rows, 0))
