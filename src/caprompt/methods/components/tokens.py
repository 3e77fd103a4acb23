"""Prompt tokens: rows put in front of a block's input, shared by the methods that use them."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from caprompt.backbones.vit import Adaptation

__all__ = ["Tokens"]


class Tokens(Adaptation):
    """Rows for each image of a batch in front of some layers' input, where they stay: `rows` is (L, B, n, D).

    They have no position embedding, so their order, and whether they stand before or behind the class token, changes nothing.
    """

    def __init__(self, rows: Tensor, layers: Sequence[int]) -> None:
        self.rows = rows
        self.slot = {layer: slot for slot, layer in enumerate(layers)}

    def tokens(self, layer: int, x: Tensor) -> Tensor | None:
        return self.rows[self.slot[layer]] if layer in self.slot else None
