"""An adapter for every task: only the newest is trained, and it starts as a copy of the one before.

    x  ->  x + MLP(norm(x)) + s (U_t relu(V_t x + a_t) + b_t)        V_t: D -> r, U_t: r -> D

The branch is that of `adapters.py`. Here the weights of all tasks are rows of four tensors, so that
the images of one batch can each pass through the adapter of another task.

Shapes: T tasks, L blocks, B images, N tokens, D width, r bottleneck.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from caprompt.backbones.vit import Adaptation, ViTConfig
from caprompt.methods.components.adapters import AdapterOptions
from caprompt.methods.components.growing_rows import GrowingRows
from caprompt.methods.components.heads import linear_init

__all__ = ["AdapterWeights", "SelectedBranches", "SharedBranches", "TaskAdapters"]


class AdapterWeights(NamedTuple):
    """The weights of one adapter, or of several with a leading dimension."""

    down: Tensor  # V, (L, r, D)
    down_bias: Tensor  # a, (L, r)
    up: Tensor  # U, (L, D, r)
    up_bias: Tensor  # b, (L, D)


class TaskAdapters(nn.Module):
    """The adapters of all tasks; `begin_task` freezes them and adds another."""

    def __init__(self, config: ViTConfig, options: AdapterOptions) -> None:
        super().__init__()
        layers, width, bottleneck = config.depth, config.width, options.bottleneck
        self.scale = options.adapter_scale
        self.down = GrowingRows(layers, bottleneck, width)
        self.down_bias = GrowingRows(layers, bottleneck)
        self.up = GrowingRows(layers, width, bottleneck)
        self.up_bias = GrowingRows(layers, width)

    @property
    def rows(self) -> tuple[GrowingRows, ...]:
        """The rows of every weight, in the order of `AdapterWeights`."""
        return self.down, self.down_bias, self.up, self.up_bias

    def begin_task(self, generator: torch.Generator) -> None:
        """Freeze the newest adapter and add a copy of it.

        The first adapter is drawn: V as in `nn.Linear`, everything else zero, so that it changes
        nothing.
        """
        for rows in self.rows:
            first = rows.newest.new_zeros(1, *rows.newest.shape[1:])
            if rows is self.down:
                first = linear_init(first.shape, first.shape[-1], generator)
            rows.append_from_newest(first)

    def weights(self) -> AdapterWeights:
        """Return the weights of all tasks, (T, L, ...); only the newest get a gradient."""
        return AdapterWeights(*(rows() for rows in self.rows))

    def newest_branches(self) -> SharedBranches:
        """Return the newest task's adapter as an adaptation for one pass."""
        return self.share(AdapterWeights(*(rows.newest[0] for rows in self.rows)))

    def branches(self) -> list[SharedBranches]:
        """Return the adapter of every task, each as an adaptation for one pass."""
        return [self.share(AdapterWeights(*weights)) for weights in zip(*self.weights(), strict=True)]

    def share(self, weights: AdapterWeights) -> SharedBranches:
        """Return one adapter, with these weights (L, ...), as an adaptation for one pass."""
        return SharedBranches(weights, self.scale)

    def select(self, tasks: Tensor) -> SelectedBranches:
        """Return the adapters of the images' tasks (B,) as an adaptation for one pass."""
        return SelectedBranches(self.weights(), self.scale, tasks)


class SharedBranches(Adaptation):
    """One adapter for all images during one forward pass, in the dtype of that pass."""

    def __init__(self, weights: AdapterWeights, scale: float) -> None:
        self.weights, self.scale = weights, scale
        self.layers: list[tuple[Tensor, ...]] = []

    def mlp(self, layer: int, x: Tensor) -> Tensor:
        """Compute the branch of one block: (B, N, D) -> (B, N, D)."""
        if not self.layers:
            self.layers = _cast_layers(self.weights, self.scale, x.dtype, dim=0)
        down, down_bias, up, up_bias = self.layers[layer]
        return F.linear(F.relu(F.linear(x, down, down_bias)), up, up_bias)

    def select(self, images: slice) -> SharedBranches:
        return self


class SelectedBranches(Adaptation):
    """An adapter for each image during one forward pass, in the dtype of that pass."""

    def __init__(self, weights: AdapterWeights, scale: float, tasks: Tensor) -> None:
        self.weights, self.scale, self.tasks = weights, scale, tasks
        self.layers: list[tuple[Tensor, ...]] = []

    def mlp(self, layer: int, x: Tensor) -> Tensor:
        """Compute the branch of one block, each image's with its own adapter."""
        if not self.layers:
            self.layers = _cast_layers(self.weights, self.scale, x.dtype, dim=1)
        # Block by block: selected for all blocks at once, they would take B adapters' memory.
        down, down_bias, up, up_bias = (part[self.tasks] for part in self.layers[layer])  # (B, ...)
        hidden = F.relu(torch.baddbmm(down_bias.unsqueeze(1), x, down.transpose(1, 2)))  # (B, N, r)
        return torch.baddbmm(up_bias.unsqueeze(1), hidden, up.transpose(1, 2))


def _cast_layers(weights: AdapterWeights, scale: float, dtype: torch.dtype, dim: int) -> list[tuple[Tensor, ...]]:
    """Return V, a, s U and s b of each block in this dtype; blocks are dimension `dim`."""
    parts = (weights.down, weights.down_bias, scale * weights.up, scale * weights.up_bias)
    return list(zip(*(part.to(dtype).unbind(dim) for part in parts), strict=True))
