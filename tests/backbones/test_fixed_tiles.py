"""Products and attention of fixed tiles, on a GPU: values against float64, and bits in every number of rows."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
if torch.cuda.is_available():
    from caprompt.backbones.fixed_tiles import attend, linear, multiply

DTYPES = [torch.bfloat16, torch.float16, torch.float32, torch.float64]
MAX_ERROR = {torch.bfloat16: 4e-3, torch.float16: 5e-4, torch.float32: 2e-6, torch.float64: 1e-14}


def draw(*shape: int, dtype: torch.dtype, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator("cuda").manual_seed(seed), device="cuda").to(dtype)


def relative_error(value: Tensor, expected: Tensor) -> float:
    return float((value.double() - expected.double()).norm() / expected.double().norm())


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("depth", [1, 48, 64, 200, 768, 3000])
def test_products_have_the_values_of_float64_and_the_same_bits_for_any_number_of_rows(dtype: torch.dtype, depth: int) -> None:
    a, b = draw(300, depth, dtype=dtype), draw(depth, 130, dtype=dtype, seed=1)
    whole = multiply(a, b)
    assert relative_error(whole, a.double() @ b.double()) < MAX_ERROR[dtype]
    for rows in (1, 2, 17, 128, 299):
        assert torch.equal(multiply(a[-rows:], b), whole[-rows:])
    several = multiply(a.view(3, 100, depth), b.expand(3, -1, -1))
    assert torch.equal(several.flatten(0, 1), whole)
    other_strides = multiply(a.T.contiguous().T, b.T.contiguous().T)
    assert relative_error(other_strides, whole) < MAX_ERROR[dtype]


@pytest.mark.parametrize("dtype", DTYPES[:3])
@pytest.mark.parametrize("gelu", [False, True])
@pytest.mark.parametrize("depth", [96, 2500])
def test_linear_layers_with_bias_and_gelu(dtype: torch.dtype, gelu: bool, depth: int) -> None:
    x, weight, bias = draw(5, 7, depth, dtype=dtype), draw(40, depth, dtype=dtype, seed=1), draw(40, dtype=dtype, seed=2)
    expected = F.linear(x.double(), weight.double(), bias.double())
    value = linear(x, weight, bias, gelu=gelu)
    assert value.shape == (5, 7, 40)
    assert relative_error(value, F.gelu(expected) if gelu else expected) < MAX_ERROR[dtype]
    assert torch.equal(linear(x[3], weight, bias, gelu=gelu), value[3])


@pytest.mark.parametrize("dtype", DTYPES[:3])
@pytest.mark.parametrize("num_prefix", [0, 5, 20])
@pytest.mark.parametrize(("width", "heads"), [(192, 3), (32, 2), (144, 3)])
def test_attention_beside_a_prefix(dtype: torch.dtype, num_prefix: int, width: int, heads: int) -> None:
    query, key, value = draw(4, 197, 3 * width, dtype=dtype).chunk(3, dim=2)
    prefix = tuple(draw(4, num_prefix, width, dtype=dtype, seed=seed) for seed in (1, 2))
    result = attend(query, key, value, heads, (prefix[0], prefix[1]) if num_prefix else None)
    joined = [torch.cat([front, own], dim=1) for front, own in zip(prefix, (key, value), strict=True)]
    split = [each.double().unflatten(2, (heads, -1)).transpose(1, 2) for each in (query, *joined)]
    expected = F.scaled_dot_product_attention(*split).transpose(1, 2).flatten(2)
    assert relative_error(result, expected) < 2 * MAX_ERROR[dtype]
    one = (prefix[0][2:3], prefix[1][2:3]) if num_prefix else None
    assert torch.equal(attend(query[2:3], key[2:3], value[2:3], heads, one), result[2:3])


def test_nothing_is_multiplied() -> None:
    assert multiply(draw(0, 4, dtype=torch.float32), draw(4, 3, dtype=torch.float32)).shape == (0, 3)
    assert linear(draw(0, 4, dtype=torch.bfloat16), draw(3, 4, dtype=torch.bfloat16)).shape == (0, 3)
