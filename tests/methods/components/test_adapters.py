from __future__ import annotations

import torch
from helpers import TINY, tiny_vit

from caprompt.methods.components.adapters import Adapter, AdapterOptions

IMAGES = torch.randn(3, 3, TINY.image_size, TINY.image_size, generator=torch.Generator().manual_seed(0))


def make_adapter(**options: object) -> Adapter:
    adapter = Adapter(TINY, AdapterOptions(bottleneck=4, **options))  # type: ignore[arg-type]
    adapter.reset_parameters(torch.Generator().manual_seed(0))
    return adapter


def make_random_adapter(**options: object) -> Adapter:
    """An adapter whose parameters are all random, so that it has an effect."""
    adapter = make_adapter(**options)
    for number, parameter in enumerate(adapter.parameters()):
        parameter.data.normal_(0, 1, generator=torch.Generator().manual_seed(number))
    return adapter


def test_a_new_adapter_changes_nothing() -> None:
    vit, adapter = tiny_vit(), make_adapter()
    assert torch.equal(vit(IMAGES, adapter.branches()), vit(IMAGES))
    assert 0.9 * TINY.width**-0.5 < adapter.down.abs().max() <= TINY.width**-0.5


def test_reset_parameters_gives_a_new_adapter() -> None:
    adapter = make_random_adapter()
    adapter.reset_parameters(torch.Generator().manual_seed(0))
    assert all(torch.equal(one, other) for one, other in zip(adapter.parameters(), make_adapter().parameters(), strict=True))


def test_branch_of_one_token_by_hand() -> None:
    adapter = make_random_adapter(adapter_scale=0.3)
    x = torch.randn(2, 5, TINY.width, generator=torch.Generator().manual_seed(9))
    result = adapter.branches().mlp(1, x)
    hidden = (adapter.down[1] @ x[1, 3] + adapter.down_bias[1]).clamp_min(0)  # (r,)
    torch.testing.assert_close(result[1, 3], 0.3 * (adapter.up[1] @ hidden + adapter.up_bias[1]))


def test_branch_is_added_to_the_mlp_of_every_block() -> None:
    """Against the blocks written out: x + attention, then x + MLP(norm(x)) + branch(x)."""
    vit, adapter = tiny_vit(), make_random_adapter()
    stem = vit.stem(IMAGES)
    x, branches = stem.tokens, adapter.branches()
    for layer, block in enumerate(vit.blocks):
        x = x + block.attn(block.norm1(x))  # type: ignore[operator, union-attr]
        x = x + block.mlp(block.norm2(x)) + branches.mlp(layer, x)  # type: ignore[operator]
    expected = vit.norm(x)[:, 0]
    torch.testing.assert_close(vit(IMAGES, adapter.branches()), expected)
    assert not torch.allclose(expected, vit(IMAGES), atol=0.01)


def test_gradients_reach_every_parameter_with_a_bf16_backbone() -> None:
    vit, adapter = tiny_vit().to(torch.bfloat16), make_random_adapter()
    vit(IMAGES, adapter.branches()).square().sum().backward()
    for parameter in adapter.parameters():
        assert parameter.grad is not None
        assert parameter.grad.dtype == torch.float32
        assert (parameter.grad.flatten(1).abs().amax(dim=1) > 0).all(), "at every layer"
