"""The fused blocks on a GPU against the blocks in float32, with every hook of an adaptation."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from caprompt.backbones import fused_block
from caprompt.backbones.fused_block import can_fuse
from caprompt.backbones.vit import Adaptation, Place, ViT, ViTConfig

needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
CONFIG = ViTConfig(image_size=32, patch_size=8, width=96, depth=3, heads=3, mlp_width=256)


def draw(*shape: int, seed: int) -> Tensor:
    return 0.3 * torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


class Everything(Adaptation):
    """Some of the hooks, by name; values follow from the layer."""

    def __init__(self, hooks: str) -> None:
        self.hooks = hooks.split()

    def tokens(self, layer: int, x: Tensor) -> Tensor | None:
        return draw(len(x), 2, CONFIG.width, seed=layer).to(x) if "tokens" in self.hooks and layer < 2 else None

    def prefix(self, layer: int, x: Tensor) -> tuple[Tensor, Tensor] | None:
        if "prefix" not in self.hooks or layer == 1:
            return None
        rows = draw(2, len(x), 5, CONFIG.width, seed=10 + layer).to(x)
        return rows[0], rows[1]

    def qkv(self, layer: int, x: Tensor) -> Tensor | None:
        return 0.2 * torch.cat([x, -x, x], dim=2) if "qkv" in self.hooks else None

    def mlp(self, layer: int, x: Tensor) -> Tensor | None:
        return 0.5 * x if "mlp" in self.hooks and layer == 1 else None

    def modulation(self, layer: int, place: Place) -> tuple[Tensor, Tensor] | None:
        if "modulation" not in self.hooks or layer == 2:
            return None
        rows = draw(2, 6, 1, CONFIG.width, seed=20 + layer).to("cuda")
        return rows[0], rows[1]


class Counted(Everything):
    """The same, with prefix rows whose number is known in advance, and no tokens."""

    puts_tokens_in_front = False

    def count_prefix_rows(self, layer: int) -> int | None:
        return 5 if "prefix" in self.hooks and layer != 1 else 0


def make_pair(activation: str) -> tuple[ViT, ViT]:
    """Return a network in float32 and the same in bfloat16, whose blocks are fused."""
    torch.manual_seed(0)
    exact = ViT(ViTConfig(**{**vars(CONFIG), "quick_gelu": activation == "quick"})).requires_grad_(False).eval()
    for parameter in exact.parameters():
        parameter.data += 0.05 * torch.randn(parameter.shape)
        parameter.data = parameter.data.bfloat16().float()
    fused = ViT(exact.config).requires_grad_(False).eval()
    fused.load_state_dict(exact.state_dict())
    return exact.cuda(), fused.cuda().bfloat16()


@needs_gpu
@pytest.mark.parametrize("activation", ["exact", "quick"])
@pytest.mark.parametrize("kind", [Everything, Counted])
@pytest.mark.parametrize("hooks", ["", "tokens", "prefix", "qkv", "mlp", "modulation", "prefix modulation qkv mlp"])
@torch.no_grad()
def test_fused_blocks_differ_from_float32_by_rounding(hooks: str, kind: type[Everything], activation: str) -> None:
    if kind is Counted and "tokens" in hooks:
        pytest.skip("tokens in front are known to be there")
    exact, fused = make_pair(activation)
    images, adaptation = draw(6, 3, 32, 32, seed=1).cuda(), kind(hooks)
    for num_blocks in (1, 2):
        expected = exact(images, adaptation, num_blocks=num_blocks)
        result = fused(images, adaptation, num_blocks=num_blocks)
        assert result.shape == expected.shape
        assert float((result.double() - expected.double()).norm() / expected.double().norm()) < 0.02
    expected, result = exact.encode(images, adaptation), fused.encode(images, adaptation)
    assert float((result.double() - expected.double()).norm() / expected.double().norm()) < 0.02


def test_blocks_are_fused_only_without_gradients_in_half_precision_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fused_block, "has_triton", lambda device: device.type == "cuda")
    with torch.no_grad():
        assert not can_fuse(torch.zeros(1, 2, 4, dtype=torch.bfloat16))
        if torch.cuda.is_available():
            assert can_fuse(torch.zeros(1, 2, 4, dtype=torch.bfloat16, device="cuda"))
            assert not can_fuse(torch.zeros(1, 2, 4, device="cuda"))
            monkeypatch.setattr(fused_block, "has_triton", lambda device: False)
            assert not can_fuse(torch.zeros(1, 2, 4, dtype=torch.bfloat16, device="cuda"))
    if torch.cuda.is_available():
        assert not can_fuse(torch.zeros(1, 2, 4, dtype=torch.bfloat16, device="cuda"))
