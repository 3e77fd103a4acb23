from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn

from caprompt.backbones.fp8 import Fp8Linear
from caprompt.backbones.layers import linear


@pytest.mark.parametrize("bias", [True, False])
def test_the_same_map_plain_and_compiled(bias: bool) -> None:
    layer, x = nn.Linear(8, 4, bias=bias), torch.randn(2, 5, 8, generator=torch.Generator().manual_seed(0))
    assert torch.equal(linear(layer, x), layer(x))
    asked: list[str] = []

    def noting(graph: torch.fx.GraphModule, _: object) -> Callable[..., object]:
        asked.extend(str(node.target) for node in graph.graph.nodes if node.op == "call_function")
        return graph.forward

    torch.testing.assert_close(torch.compile(linear, dynamic=False, backend=noting)(layer, x), layer(x))
    assert any("add" in name for name in asked) == bias  # the bias stands apart


def test_maps_of_another_kind_are_called() -> None:
    layer, x = Fp8Linear(nn.Linear(16, 16).requires_grad_(False)), torch.randn(3, 16, generator=torch.Generator().manual_seed(0))
    assert torch.equal(torch.compile(linear, dynamic=False, backend="eager")(layer, x), layer(x))
