"""AdaptFormer adapters: a bottleneck branch parallel to the MLP of every block.

    x  ->  x + MLP(norm(x)) + s (U relu(V x + a) + b)        V: D -> r, U: r -> D

The input of the branch is the MLP's input before its LayerNorm. U starts at zero, so a new adapter
changes nothing. There is no dropout in the branch: there is no global random state here, and
dropping a tenth of 64 units is not worth seeding every step.

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
    """Options of adapters."""

    bottleneck: int = Field(64, ge=1, description="bottleneck width of the adapter")
    adapter_scale: float = Field(0.1, gt=0, description="factor on the adapter's output")


class Adapter(nn.Module):
    """Adapter parameters of all blocks; pass `branches()` to the ViT as its adaptation."""

    def __init__(self, config: ViTConfig, options: AdapterOptions) -> None:
        super().__init__()
        self.scale = options.adapter_scale
        layers, width, bottleneck = config.depth, config.width, options.bottleneck
        self.down = nn.Parameter(torch.zeros(layers, bottleneck, width))  # V
        self.down_bias = nn.Parameter(torch.zeros(layers, bottleneck))  # a
        self.up = nn.Parameter(torch.zeros(layers, width, bottleneck))  # U
        self.up_bias = nn.Parameter(torch.zeros(layers, width))  # b

    @torch.no_grad()
    def reset_parameters(self, generator: torch.Generator) -> None:
        """Initialize V as `nn.Linear` does and everything else to zero."""
        self.down.copy_(linear_init(self.down.shape, self.down.shape[2], generator))
        for parameter in (self.down_bias, self.up, self.up_bias):
            parameter.zero_()

    def branches(self) -> Branches:
        """Return this adapter as an adaptation for one forward pass."""
        return Branches(self)

    def cast_layers(self, dtype: torch.dtype) -> list[tuple[Tensor, ...]]:
        """Return V, a, s U and s b of each block in this dtype."""
        parts = (self.down, self.down_bias, self.scale * self.up, self.scale * self.up_bias)
        return list(zip(*(part.to(dtype).unbind() for part in parts), strict=True))


class Branches(Adaptation):
    """An adapter during one forward pass, in the dtype of that pass."""

    def __init__(self, adapter: Adapter) -> None:
        self.adapter = adapter
        self.layers: list[tuple[Tensor, ...]] = []

    def mlp(self, layer: int, x: Tensor) -> Tensor:
        """Compute the branch of one block: (B, N, D) -> (B, N, D)."""
        if not self.layers:
            self.layers = self.adapter.cast_layers(x.dtype)  # cast once for all layers
        down, down_bias, up, up_bias = self.layers[layer]
        return F.linear(F.relu(F.linear(x, down, down_bias)), up, up_bias)

    def select(self, images: slice) -> Branches:
        return self  # the same for all images
