"""AdaptFormer adapters: a narrow branch beside every block's MLP, shared by the methods that use them.

    x  ->  x + MLP(norm(x)) + s (U relu(V x + a) + b)        V: D -> r, U: r -> D

The branch reads the MLP's un-normed input. U starts at zero, so a new adapter changes nothing. There is no dropout in the branch:
chance is never global here, and a tenth of 64 units does not pay for seeding every step.

Shapes: L blocks, B images, N tokens, D width, r bottleneck.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor, nn

from caprompt.backbones.vit import Adaptation, ViTConfig
from caprompt.methods.components.heads import linear_init
from caprompt.methods.options import Options

__all__ = ["Adapter", "AdapterOptions", "Branches"]


class AdapterOptions(Options):
    """The shape of adapters."""

    bottleneck: int = Field(64, ge=1, description="width of the adapter's branch beside each MLP")
    adapter_scale: float = Field(0.1, gt=0, description="the branch's output is multiplied by this")


class Adapter(nn.Module):
    """One adapter for each block; hand its `branches()` to the ViT."""

    def __init__(self, config: ViTConfig, options: AdapterOptions) -> None:
        super().__init__()
        self.scale = options.adapter_scale
        layers, width, narrow = config.depth, config.width, options.bottleneck
        self.down = nn.Parameter(torch.zeros(layers, narrow, width))  # V
        self.down_bias = nn.Parameter(torch.zeros(layers, narrow))  # a
        self.up = nn.Parameter(torch.zeros(layers, width, narrow))  # U
        self.up_bias = nn.Parameter(torch.zeros(layers, width))  # b

    @torch.no_grad()
    def restart(self, generator: torch.Generator) -> None:
        """A new adapter: V as `nn.Linear` draws its weights, all else zero."""
        self.down.copy_(linear_init(self.down.shape, self.down.shape[2], generator))
        for parameter in (self.down_bias, self.up, self.up_bias):
            parameter.zero_()

    def branches(self) -> Branches:
        """This adapter as an adaptation, for one pass."""
        return Branches(self)

    def by_layer(self, dtype: torch.dtype) -> list[tuple[Tensor, ...]]:
        """V, a, s U and s b of each block."""
        parts = (self.down, self.down_bias, self.scale * self.up, self.scale * self.up_bias)
        return list(zip(*(part.to(dtype).unbind() for part in parts), strict=True))


class Branches(Adaptation):
    """An adapter during one pass, in the numbers that the pass computes in."""

    def __init__(self, adapter: Adapter) -> None:
        self.adapter = adapter
        self.layers: list[tuple[Tensor, ...]] = []

    def mlp(self, layer: int, x: Tensor) -> Tensor:
        """The branch of one block: (B, N, D) -> (B, N, D)."""
        if not self.layers:
            self.layers = self.adapter.by_layer(x.dtype)  # once for all layers
        down, down_bias, up, up_bias = self.layers[layer]
        return F.linear(F.relu(F.linear(x, down, down_bias)), up, up_bias)
