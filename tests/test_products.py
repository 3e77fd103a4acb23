from __future__ import annotations

import pytest
import torch
from torch import nn

from caprompt.fp8 import Fp8Linear
from caprompt.products import mapped


@pytest.mark.parametrize("bias", [True, False])
def test_the_same_map_plain_and_compiled(bias: bool) -> None:
    layer, x = nn.Linear(8, 4, bias=bias), torch.randn(2, 5, 8, generator=torch.Generator().manual_seed(0))
    assert torch.equal(mapped(layer, x), layer(x))
    compiled = torch.compile(mapped, dynamic=False, backend="aot_eager")
    torch.testing.assert_close(compiled(layer, x), layer(x))


def test_maps_of_another_kind_are_called() -> None:
    layer, x = Fp8Linear(nn.Linear(16, 16).requires_grad_(False)), torch.randn(3, 16, generator=torch.Generator().manual_seed(0))
    assert torch.equal(torch.compile(mapped, dynamic=False, backend="eager")(layer, x), layer(x))
