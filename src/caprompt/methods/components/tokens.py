"""Prompt tokens: rows prepended to the input tokens of a block.

Shapes: L prompted layers, B images, n tokens, D width.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from caprompt.backbones.vit import Adaptation

__all__ = ["Tokens"]


class Tokens(Adaptation):
    """Tokens prepended for each image at some layers: `rows` is (L, B, n, D).

    They remain for all later layers. They have no position embedding, so neither their order nor
    their position relative to the class token matters.
    """

    def __init__(self, rows: Tensor, layers: Sequence[int]) -> None:
        self.rows = rows
        self.slot = {layer: slot for slot, layer in enumerate(layers)}

    def tokens(self, layer: int, x: Tensor) -> Tensor | None:
        return self.rows[self.slot[layer]] if layer in self.slot else None

    def select(self, images: slice) -> Tokens:
        return Tokens(self.rows[:, images], list(self.slot))
