from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from caprompt.backbones.attention import Attention, pad_front

B, N, D, ROWS = 3, 7, 16, 2


def make_attention() -> Attention:
    torch.manual_seed(0)
    return Attention(D, heads=4).double().requires_grad_(False)


def random_tensors(*shapes: tuple[int, ...]) -> list[Tensor]:
    generator = torch.Generator().manual_seed(1)
    return [torch.randn(*shape, generator=generator, dtype=torch.float64) for shape in shapes]


def reference(attention: Attention, x: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    """Compute attention head by head, with the prefix in front of keys and values."""
    query, key, value = F.linear(x, attention.qkv.weight, attention.qkv.bias).chunk(3, dim=2)
    key, value = torch.cat([keys, key], dim=1), torch.cat([values, value], dim=1)
    heads = []
    for start in range(0, D, D // attention.heads):
        q, k, v = (part[..., start : start + D // attention.heads] for part in (query, key, value))
        heads.append((q @ k.transpose(1, 2) / (D // attention.heads) ** 0.5).softmax(dim=-1) @ v)
    return F.linear(torch.cat(heads, dim=-1), attention.proj.weight, attention.proj.bias)


@pytest.mark.parametrize("index", [None, -N, -1])
def test_values_and_gradients_with_a_prefix(index: int | None) -> None:
    attention, tensors = make_attention(), random_tensors((B, N, D), (B, ROWS, D), (B, ROWS, D))
    inputs, copies = ([tensor.clone().requires_grad_() for tensor in tensors] for _ in range(2))
    out, expected = attention(inputs[0], (inputs[1], inputs[2]), index=index), reference(attention, *copies)
    expected = expected if index is None else expected[:, index].unsqueeze(1)
    torch.testing.assert_close(out, expected)
    upstream = torch.randn(out.shape, generator=torch.Generator().manual_seed(2), dtype=out.dtype)
    gradients = torch.autograd.grad(out, inputs, upstream), torch.autograd.grad(expected, copies, upstream)
    for gradient, expected_gradient in zip(*gradients, strict=True):
        torch.testing.assert_close(gradient, expected_gradient)


@pytest.mark.parametrize("index", [None, -N, -1])
def test_prefix_written_into_padding_equals_concatenation(index: int | None) -> None:
    """`attend_in_padding` is what a GPU does without gradients."""
    attention, (x, keys, values) = make_attention(), random_tensors((B, N, D), (B, ROWS, D), (B, ROWS, D))
    with torch.no_grad():
        attended = attention.proj(attention.attend_in_padding(x, (keys, values), index))
        torch.testing.assert_close(attended, attention(x, (keys, values), index=index))


def test_custom_operator_declares_its_mutation_and_shapes() -> None:
    attention, (x, keys, values) = make_attention(), random_tensors((B, N, D), (B, ROWS, D), (B, ROWS, D))
    projected = attention.qkv(pad_front(x, ROWS))
    torch.library.opcheck(torch.ops.caprompt.attend_beside.default, (projected, keys, values, attention.heads))
    torch.library.opcheck(
        torch.ops.caprompt.attend_beside.default, (projected[..., D:].contiguous(), keys, values, attention.heads, x[:, :1])
    )
    compiled = torch.compile(attention.attend_in_padding, dynamic=False, backend="aot_eager")
    with torch.no_grad():
        torch.testing.assert_close(compiled(x, (keys, values), None), attention.attend_in_padding(x, (keys, values), None))


@pytest.mark.parametrize("index", [None, -2])
def test_precomputed_qkv_is_used(index: int | None) -> None:
    attention, (x, keys, values, delta) = make_attention(), random_tensors((B, N, D), (B, ROWS, D), (B, ROWS, D), (B, N, 3 * D))
    qkv = attention.qkv(x)
    torch.testing.assert_close(attention(torch.zeros_like(x), index=index, qkv=qkv), attention(x, index=index))
    expected = attention(x, (keys, values), index=index, qkv=qkv + delta)
    torch.testing.assert_close(attention(x, (keys, values), delta, index), expected)
