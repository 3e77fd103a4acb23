"""Self-attention of a ViT block, with optional prefix rows: further keys and values per image.

Without gradients, a GPU need not concatenate a few prefix rows with all keys and values: the input
of the projection is padded by as many rows, and the prefix is written into the projected padding
(`attend_with_prefix`).

Shapes: B images, N tokens, n prefix rows, D width, H heads of d = D / H.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from caprompt.backbones.layers import linear
from caprompt.backbones.operators import define_operator

__all__ = ["Attention", "attend_with_prefix"]


def attend_with_prefix(projected: Tensor, keys: Tensor, values: Tensor, heads: int, query: Tensor | None = None) -> Tensor:
    """Write prefix keys and values, (B, n, D), into padding and attend, without gradients: -> (B, N, D).

    `projected` holds queries, keys and values, (B, n + N, 3 D), whose first n rows are padding; or
    only keys and values, (B, n + N, 2 D), if `query` is passed. An operator of its own, since
    torch.compile would copy a tensor that it sees partly overwritten.
    """
    attended: Tensor = torch.ops.caprompt.attend_beside(projected, keys, values, heads, query)
    return attended


def _attend_with_prefix(projected: Tensor, keys: Tensor, values: Tensor, heads: int, query: Tensor | None = None) -> Tensor:
    padding, width = keys.shape[1:]
    key, value = projected[..., -2 * width :].chunk(2, dim=2)
    key[:, :padding], value[:, :padding] = keys, values
    return _attend(projected[:, padding:, :width] if query is None else query, key, value, heads).contiguous()


def _describe_attended(projected: Tensor, keys: Tensor, values: Tensor, heads: int, query: Tensor | None = None) -> Tensor:
    images, rows, _ = projected.shape
    padding, width = keys.shape[1:]
    return projected.new_empty(images, rows - padding if query is None else query.shape[1], width)


define_operator(
    "attend_beside(Tensor(a0!) projected, Tensor keys, Tensor values, SymInt heads, Tensor? query=None) -> Tensor",
    _attend_with_prefix,
    _describe_attended,
)


def _attend(query: Tensor, key: Tensor, value: Tensor, heads: int) -> Tensor:
    """Compute multi-head attention: (B, N, D) each -> (B, N, D)."""
    query, key, value = (_split_heads(x, heads) for x in (query, key, value))
    return F.scaled_dot_product_attention(query, key, value).transpose(1, 2).flatten(2)  # (B, H, N, d) -> (B, N, D)


def _split_heads(x: Tensor, heads: int) -> Tensor:
    """(B, n, D) -> (B, H, n, d)."""
    split: Tensor = x.unflatten(2, (heads, -1))
    return split.transpose(1, 2)


class Attention(nn.Module):
    """Multi-head self-attention with timm's parameter names."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width)
        self.proj = nn.Linear(width, width)

    def forward(
        self,
        x: Tensor,
        prefix: tuple[Tensor, Tensor] | None = None,
        delta: Tensor | None = None,
        index: int | None = None,
        qkv: Tensor | None = None,
    ) -> Tensor:
        """Attend over normalized tokens: (B, N, D) -> (B, N, D), or (B, 1, D) with an `index`.

        With an `index` only that token is computed.

        `prefix` are keys and values in front of the block's own, (B, n, D) each; `delta` is added
        to queries, keys and values, (B, N, 3 D); `qkv` are the queries, keys and values, (B, N, 3
        D), if they have been computed before.
        """
        if prefix is not None and delta is None and qkv is None and not torch.is_grad_enabled() and x.is_cuda:
            attended = self.attend_in_padding(x, prefix, index)
        else:
            query, key, value = self._add_delta(*self._project(x, index, qkv), delta, index)
            if prefix is not None:
                # Backward needs the queries, but not the keys and values that were projected
                # together with them: those are saved with the prefix in front. A copy of the
                # queries lets the projection be freed.
                query = query.contiguous() if x.is_cuda and torch.is_grad_enabled() else query
                key, value = (torch.cat([rows.to(x.dtype), own], dim=1) for rows, own in zip(prefix, (key, value), strict=True))
            attended = _attend(query, key, value, self.heads)
        return linear(self.proj, attended)

    def attend_in_padding(self, x: Tensor, prefix: tuple[Tensor, Tensor], index: int | None) -> Tensor:
        """Attend with a prefix written into padding: (B, N or 1, D)."""
        keys, values = (rows.to(x.dtype) for rows in prefix)
        padded = pad_front(x, keys.shape[1])
        query, projected = (None, self.qkv(padded)) if index is None else self._project_separately(x[:, index].unsqueeze(1), padded)
        return attend_with_prefix(projected, keys, values, self.heads, query)

    def _project(self, x: Tensor, index: int | None, qkv: Tensor | None = None) -> tuple[Tensor, Tensor, Tensor]:
        """Return queries (B, N or 1, D), keys and values (B, N, D)."""
        if index is not None and qkv is None:
            query, key_value = self._project_separately(x[:, index].unsqueeze(1), x)
            key, value = key_value.chunk(2, dim=2)
        else:
            query, key, value = (self.qkv(x) if qkv is None else qkv).chunk(3, dim=2)
            query = query if index is None else query[:, index].unsqueeze(1)
        return query, key, value

    def _project_separately(self, query_tokens: Tensor, key_tokens: Tensor) -> tuple[Tensor, Tensor]:
        """Return queries (B, M, D), and concatenated keys and values (B, N, 2 D)."""
        width, weight, bias = query_tokens.shape[2], self.qkv.weight, self.qkv.bias
        return F.linear(query_tokens, weight[:width], bias[:width]), F.linear(key_tokens, weight[width:], bias[width:])

    def _add_delta(
        self, query: Tensor, key: Tensor, value: Tensor, delta: Tensor | None, index: int | None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Add to queries, keys and values their part of the delta."""
        if delta is None:
            return query, key, value
        to_query, to_key, to_value = delta.to(key.dtype).chunk(3, dim=2)
        return query + (to_query if index is None else to_query[:, index].unsqueeze(1)), key + to_key, value + to_value


def pad_front(x: Tensor, rows: int) -> Tensor:
    """Put rows of zeros in front: (B, N, D) -> (B, rows + N, D)."""
    if torch.compiler.is_compiling():  # the kernel that computes x can then write directly into the concatenation
        return torch.cat([x.new_zeros(x.shape[0], rows, x.shape[2]), x], dim=1)
    return F.pad(x, (0, 0, rows, 0))
