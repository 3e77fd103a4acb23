from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from caprompt.backbones.attention import Attention, attend_beside, behind_room

B, N, D, ROWS = 3, 7, 16, 2


def attention() -> Attention:
    torch.manual_seed(0)
    return Attention(D, heads=4).double().requires_grad_(False)


def tensors(*shapes: tuple[int, ...]) -> list[Tensor]:
    chance = torch.Generator().manual_seed(1)
    return [torch.randn(*shape, generator=chance, dtype=torch.float64) for shape in shapes]


def by_the_book(own: Attention, x: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    """Head by head, with the further keys and values in front."""
    query, key, value = F.linear(x, own.qkv.weight, own.qkv.bias).chunk(3, dim=2)
    key, value = torch.cat([keys, key], dim=1), torch.cat([values, value], dim=1)
    heads = []
    for place in range(0, D, D // own.heads):
        q, k, v = (part[..., place : place + D // own.heads] for part in (query, key, value))
        heads.append((q @ k.transpose(1, 2) / (D // own.heads) ** 0.5).softmax(dim=-1) @ v)
    return F.linear(torch.cat(heads, dim=-1), own.proj.weight, own.proj.bias)


@pytest.mark.parametrize("at", [None, -N, -1])
def test_values_and_gradients_with_a_prefix(at: int | None) -> None:
    own, given = attention(), tensors((B, N, D), (B, ROWS, D), (B, ROWS, D))
    mine, book = ([tensor.clone().requires_grad_() for tensor in given] for _ in range(2))
    out, expected = own(mine[0], (mine[1], mine[2]), at=at), by_the_book(own, *book)
    expected = expected if at is None else expected[:, at].unsqueeze(1)
    torch.testing.assert_close(out, expected)
    pull = torch.randn(out.shape, generator=torch.Generator().manual_seed(2), dtype=out.dtype)
    for got, wanted in zip(torch.autograd.grad(out, mine, pull), torch.autograd.grad(expected, book, pull), strict=True):
        torch.testing.assert_close(got, wanted)


@pytest.mark.parametrize("at", [None, -N, -1])
def test_room_left_in_the_product_holds_the_prefix(at: int | None) -> None:
    """What a GPU does where nothing learns."""
    own, (x, keys, values) = attention(), tensors((B, N, D), (B, ROWS, D), (B, ROWS, D))
    with torch.no_grad():
        mixed = own.proj(own.mixed_beside(x, (keys, values), at))
        torch.testing.assert_close(mixed, own(x, (keys, values), at=at))


def test_one_operator_for_compilers() -> None:
    """It says what it changes and gives what it promises."""
    own, (x, keys, values) = attention(), tensors((B, N, D), (B, ROWS, D), (B, ROWS, D))
    projected = own.qkv(behind_room(x, ROWS))
    torch.library.opcheck(attend_beside, (projected, keys, values, own.heads))
    torch.library.opcheck(attend_beside, (projected[..., D:].contiguous(), keys, values, own.heads, x[:, :1]))
    compiled = torch.compile(own.mixed_beside, dynamic=False, backend="aot_eager")
    with torch.no_grad():
        torch.testing.assert_close(compiled(x, (keys, values), None), own.mixed_beside(x, (keys, values), None))


@pytest.mark.parametrize("at", [None, -2])
def test_what_is_known_is_not_computed_again(at: int | None) -> None:
    own, (x, keys, values, change) = attention(), tensors((B, N, D), (B, ROWS, D), (B, ROWS, D), (B, N, 3 * D))
    known = own.qkv(x)
    torch.testing.assert_close(own(torch.zeros_like(x), at=at, known=known), own(x, at=at))
    changed = own(x, (keys, values), at=at, known=known + change)
    torch.testing.assert_close(own(x, (keys, values), change, at), changed)
