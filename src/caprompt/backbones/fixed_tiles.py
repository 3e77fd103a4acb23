"""Matrix products and attention on a GPU in which the result for a row does not depend on how many rows there are.

    multiply(a, b)                        # (n, k) @ (k, m), or with a batch dimension
    linear(x, weight, bias, gelu=True)    # (..., k) -> (..., m)
    attend(query, key, value, heads)      # per image, with prefix rows in front of keys and values

A library chooses its kernel by the number of rows, and some divide a sum among several blocks of threads. An image alone then
differs in its last bits from the same image in a batch. Here tiles have one size for all numbers of rows, and a sum over k is
computed from first to last, a long one in parts whose number depends on k alone, so that the bits are the same, by construction.
`batch_invariance` says where these are used. Needs Triton, which PyTorch's CUDA builds for Linux bring along.

Shapes: B images, N tokens, n prefix rows, D width, H heads of d = D / H.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import reduce

import torch
import torch.nn.functional as F
import triton
import triton.language as tl
from torch import Tensor

__all__ = ["ATTENTION_TILES", "TILES", "Tiles", "attend", "linear", "multiply"]


@dataclass(frozen=True)
class Tiles:
    """The division of a product: rows and columns of a tile, values of k at a time; warps and stages of a program."""

    rows: int
    columns: int
    depth: int
    warps: int
    stages: int


#: By the number of bits of an operand; the fastest of those in benchmarks/row_invariance.py.
TILES = {16: Tiles(128, 128, 64, 4, 3), 32: Tiles(16, 128, 64, 4, 3)}
#: Operands of 32 bits are multiplied as three products of their higher and lower parts, which is as exact as float32.
PRECISION = {16: "tf32", 32: "tf32x3"}
ATTENTION_TILES = Tiles(64, 64, 64, 4, 2)  # queries and keys at a time
MAX_SUMMED = {16: 1 << 30, 32: 1024}  # values of k that one program adds up, by the number of bits
GROUP = 8  # rows of tiles that are computed together, so that neighbors share their operands in the cache


@triton.jit
def _multiply_tiles(
    a, b, bias, out, num_rows, num_columns, depth, part, num_parts, a_batch, a_row, a_step, b_batch, b_step, b_column,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, DEPTH: tl.constexpr, GROUP: tl.constexpr, EVEN: tl.constexpr,
    HAS_BIAS: tl.constexpr, GELU: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Compute one tile of a @ b, with bias and GELU, or of one part of its sum over k: (B, parts, n, m)."""
    program, place = tl.program_id(0), tl.program_id(1)
    batch, own_start = (place // num_parts).to(tl.int64), (place % num_parts) * part
    own_end = tl.minimum(own_start + part, depth)
    row_tiles, column_tiles = tl.cdiv(num_rows, ROWS), tl.cdiv(num_columns, COLUMNS)
    in_group = GROUP * column_tiles
    first = (program // in_group) * GROUP
    height = tl.minimum(row_tiles - first, GROUP)
    row_tile = first + (program % in_group) % height
    column_tile = (program % in_group) // height

    rows = row_tile * ROWS + tl.arange(0, ROWS)
    columns = column_tile * COLUMNS + tl.arange(0, COLUMNS)
    steps = tl.arange(0, DEPTH)
    # Rows and columns beyond the last are others again: they are computed, and not stored.
    safe_rows, safe_columns = rows % num_rows, columns % num_columns
    a_tile = a + batch * a_batch + safe_rows.to(tl.int64)[:, None] * a_row + (own_start + steps)[None, :] * a_step
    b_tile = b + batch * b_batch + (own_start + steps)[:, None] * b_step + safe_columns.to(tl.int64)[None, :] * b_column
    total = tl.zeros((ROWS, COLUMNS), dtype=tl.float32)
    for start in range(own_start, own_end, DEPTH):
        if EVEN:
            a_values, b_values = tl.load(a_tile), tl.load(b_tile)
        else:
            inside = steps < own_end - start
            a_values = tl.load(a_tile, mask=inside[None, :], other=0.0)
            b_values = tl.load(b_tile, mask=inside[:, None], other=0.0)
        total = tl.dot(a_values, b_values, total, input_precision=PRECISION)
        a_tile += DEPTH * a_step
        b_tile += DEPTH * b_step
    if HAS_BIAS:
        total += tl.load(bias + safe_columns).to(tl.float32)[None, :]
    if GELU:
        total = 0.5 * total * (1 + tl.erf(total * 0.7071067811865476))
    places = (place.to(tl.int64) * num_rows + rows.to(tl.int64)[:, None]) * num_columns + columns[None, :]
    inside = (rows[:, None] < num_rows) & (columns[None, :] < num_columns)
    tl.store(out + places, total.to(out.dtype.element_ty), mask=inside)


@triton.jit
def _multiply_rows(
    a, b, out, num_rows, num_columns, depth, a_batch, a_row, a_step, b_batch, b_step, b_column,
    COLUMNS: tl.constexpr, DEPTH: tl.constexpr,
):  # fmt: skip
    """Compute some columns of one row of a @ b in float64, for which tiles of tensor cores are not worth it."""
    row, column_tile, batch = tl.program_id(0).to(tl.int64), tl.program_id(1), tl.program_id(2).to(tl.int64)
    columns, steps = column_tile * COLUMNS + tl.arange(0, COLUMNS), tl.arange(0, DEPTH)
    within = columns < num_columns
    total = tl.zeros((DEPTH, COLUMNS), dtype=tl.float64)
    for start in range(0, depth, DEPTH):
        inside = start + steps < depth
        a_values = tl.load(a + batch * a_batch + row * a_row + (start + steps) * a_step, mask=inside, other=0.0)
        b_places = b + batch * b_batch + (start + steps)[:, None] * b_step + columns.to(tl.int64)[None, :] * b_column
        b_values = tl.load(b_places, mask=inside[:, None] & within[None, :], other=0.0)
        total += a_values[:, None] * b_values
    tl.store(out + (batch * num_rows + row) * num_columns + columns, tl.sum(total, axis=0), mask=within)


@triton.jit
def _attend_over(
    query, key, value, total, weight_sum, highest, count, key_row, value_row, factor,
    KEYS: tl.constexpr, HEAD: tl.constexpr, WIDTH: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Add `count` keys and values to the running sums of a tile of queries."""
    columns = tl.arange(0, WIDTH)
    for start in range(0, count, KEYS):
        rows = start + tl.arange(0, KEYS)
        inside = (rows[:, None] < count) & (columns[None, :] < HEAD)
        keys = tl.load(key + rows.to(tl.int64)[:, None] * key_row + columns[None, :], mask=inside, other=0.0)
        values = tl.load(value + rows.to(tl.int64)[:, None] * value_row + columns[None, :], mask=inside, other=0.0)
        scores = tl.dot(query, tl.trans(keys), input_precision=PRECISION) * factor  # in units of log 2
        scores = tl.where(rows[None, :] < count, scores, float("-inf"))
        new_highest = tl.maximum(highest, tl.max(scores, axis=1))
        rescale = tl.exp2(highest - new_highest)
        weights = tl.exp2(scores - new_highest[:, None])
        weight_sum = weight_sum * rescale + tl.sum(weights, axis=1)
        total = tl.dot(weights.to(values.dtype), values, total * rescale[:, None], input_precision=PRECISION)
        highest = new_highest
    return total, weight_sum, highest


@triton.jit
def _attend_tile(
    query, key, value, prefix_key, prefix_value, out, num_queries, num_keys, num_prefix, heads, factor,
    query_image, query_head, query_row, key_image, key_head, key_row, value_image, value_head, value_row,
    prefix_key_image, prefix_key_head, prefix_key_row, prefix_value_image, prefix_value_head, prefix_value_row,
    out_image, out_head, out_row,
    QUERIES: tl.constexpr, KEYS: tl.constexpr, HEAD: tl.constexpr, WIDTH: tl.constexpr, HAS_PREFIX: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """Attend with a tile of the queries of one head of one image."""
    image, head = (tl.program_id(1) // heads).to(tl.int64), (tl.program_id(1) % heads).to(tl.int64)
    rows, columns = tl.program_id(0) * QUERIES + tl.arange(0, QUERIES), tl.arange(0, WIDTH)
    inside = (rows[:, None] < num_queries) & (columns[None, :] < HEAD)
    places = query + image * query_image + head * query_head + rows.to(tl.int64)[:, None] * query_row + columns[None, :]
    own_query = tl.load(places, mask=inside, other=0.0)
    total = tl.zeros((QUERIES, WIDTH), dtype=tl.float32)
    weight_sum = tl.zeros((QUERIES,), dtype=tl.float32)
    highest = tl.full((QUERIES,), float("-inf"), dtype=tl.float32)
    if HAS_PREFIX:
        total, weight_sum, highest = _attend_over(
            own_query, prefix_key + image * prefix_key_image + head * prefix_key_head,
            prefix_value + image * prefix_value_image + head * prefix_value_head,
            total, weight_sum, highest, num_prefix, prefix_key_row, prefix_value_row, factor, 16, HEAD, WIDTH, PRECISION,
        )  # fmt: skip
    total, weight_sum, highest = _attend_over(
        own_query, key + image * key_image + head * key_head, value + image * value_image + head * value_head,
        total, weight_sum, highest, num_keys, key_row, value_row, factor, KEYS, HEAD, WIDTH, PRECISION,
    )  # fmt: skip
    total /= weight_sum[:, None]
    places = out + image * out_image + head * out_head + rows.to(tl.int64)[:, None] * out_row + columns[None, :]
    tl.store(places, total.to(out.dtype.element_ty), mask=inside)


def multiply(a: Tensor, b: Tensor, tiles: Tiles | None = None) -> Tensor:
    """Multiply matrices, (n, k) and (k, m), or as many pairs of them as the batch dimension says: (B, n, k) and (B, k, m)."""
    batched_a, batched_b = (x if x.dim() == 3 else x.unsqueeze(0) for x in (a, b))
    out = _multiply_float64(batched_a, batched_b) if a.dtype == torch.float64 else _multiply(batched_a, batched_b, tiles=tiles)
    return out if a.dim() == 3 else out[0]


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None, *, gelu: bool = False, tiles: Tiles | None = None) -> Tensor:
    """Compute x weight^T + bias, or the GELU of that: (..., k), (m, k), (m,) -> (..., m)."""
    flat = x.reshape(1, -1, x.shape[-1])
    return _multiply(flat, weight.T.unsqueeze(0), bias, gelu, tiles).view(*x.shape[:-1], len(weight))


def _multiply_float64(a: Tensor, b: Tensor) -> Tensor:
    """Compute a (B, n, k) @ b (B, k, m)."""
    (images, num_rows, depth), num_columns = a.shape, b.shape[2]
    out = a.new_empty(images, num_rows, num_columns)
    if out.numel():
        grid = (num_rows, triton.cdiv(num_columns, 16), images)
        _multiply_rows[grid](
            a, b, out, num_rows, num_columns, depth, *a.stride(), *b.stride(), COLUMNS=16, DEPTH=64, num_warps=4
        )  # fmt: skip
    return out


def _multiply(a: Tensor, b: Tensor, bias: Tensor | None = None, gelu: bool = False, tiles: Tiles | None = None) -> Tensor:
    """Compute a (B, n, k) @ b (B, k, m), with bias and GELU: (B, n, m)."""
    (images, num_rows, depth), num_columns, bits = a.shape, b.shape[2], 8 * a.element_size()
    tiles, part = tiles or TILES[bits], MAX_SUMMED[bits]
    num_parts = max(1, triton.cdiv(depth, part))
    out = a.new_empty(images, num_parts, num_rows, num_columns)
    if not out.numel():
        return out[:, 0]
    whole = num_parts == 1  # else bias and GELU come after the sum of the parts
    grid = (triton.cdiv(num_rows, tiles.rows) * triton.cdiv(num_columns, tiles.columns), images * num_parts)
    _multiply_tiles[grid](
        a, b, bias if whole and bias is not None else out, out, num_rows, num_columns, depth, part, num_parts,
        *a.stride(), *b.stride(), ROWS=tiles.rows, COLUMNS=tiles.columns, DEPTH=tiles.depth, GROUP=GROUP,
        EVEN=depth % tiles.depth == 0, HAS_BIAS=whole and bias is not None, GELU=whole and gelu, PRECISION=PRECISION[bits],
        num_warps=tiles.warps, num_stages=tiles.stages,
    )  # fmt: skip
    if whole:
        return out[:, 0]
    total = reduce(torch.add, out.unbind(dim=1))  # one after the other, element by element
    total = total if bias is None else total + bias
    return F.gelu(total) if gelu else total


def attend(
    query: Tensor, key: Tensor, value: Tensor, heads: int, prefix: tuple[Tensor, Tensor] | None = None, tiles: Tiles | None = None
) -> Tensor:
    """Compute multi-head attention: queries (B, N, D), keys and values (B, M, D), prefix rows (B, n, D) each -> (B, N, D).

    The last dimension of each must be contiguous.
    """
    out = torch.empty(query.shape, dtype=query.dtype, device=query.device)
    prefix_key, prefix_value = prefix or (key, value)
    operands = [_split_heads(x, heads) for x in (query, key, value, prefix_key, prefix_value, out)]  # (B, H, N, d) each
    tiles, (images, _, num_queries, head) = tiles or ATTENTION_TILES, operands[0].shape
    factor = 1.4426950408889634 * head**-0.5  # log2(e): exponentials are powers of two
    _attend_tile[(triton.cdiv(num_queries, tiles.rows), images * heads)](
        *operands, num_queries, key.shape[1], prefix_key.shape[1], heads, factor,
        *(stride for x in operands for stride in x.stride()[:3]),
        QUERIES=tiles.rows, KEYS=tiles.columns, HEAD=head, WIDTH=max(16, triton.next_power_of_2(head)),
        HAS_PREFIX=prefix is not None, PRECISION="ieee" if query.dtype == torch.float32 else "tf32",
        num_warps=tiles.warps, num_stages=tiles.stages,
    )  # fmt: skip
    return out


def _split_heads(x: Tensor, heads: int) -> Tensor:
    """(B, n, D) -> (B, H, n, d), a view."""
    split: Tensor = x.unflatten(2, (heads, -1))
    return split.transpose(1, 2)
