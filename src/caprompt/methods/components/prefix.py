"""Prefix prompts: rows prepended to the keys and values of a block's attention.

A prompt may also scale and shift what attention and MLP read and write (`ModulatedPrefix`, after
SSF, arXiv:2210.08823). Like prefix rows, scales and shifts of several prompts are mixed by a weighted
sum, so the cost of a forward pass does not grow with the number of tasks.

Shapes: L prompted layers, B images, n rows of keys (and as many of values), D width.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Sequence
from typing import Annotated, Any, Literal, get_args

import torch
from pydantic import Field, field_validator
from torch import Tensor

from caprompt.backbones.vit import Adaptation, Place, ViTConfig
from caprompt.errors import OptionError
from caprompt.methods.options import PromptOptions

__all__ = ["PLACES", "Layers", "ModulatedPrefix", "Prefix", "PrefixOptions", "draw_prompt", "draw_rows", "resolve_layers"]

PLACES: tuple[Place, ...] = get_args(Place)
Layers = Literal["all"] | Annotated[str, Field(pattern=r"^first-[1-9]\d*$")] | Annotated[tuple[int, ...], Field(min_length=1)]


class PrefixOptions(PromptOptions):
    """Options of the shape and initialization of prefix prompts."""

    length: int = Field(10, ge=2, multiple_of=2, description="prompt rows per layer, keys and values together")
    layers: Layers = Field(
        "all", description="prompted layers, counted from 0: 'all', a list, a range such as '0-8', or 'first-5' for up to five"
    )
    init: Literal["normal", "uniform"] = Field(
        "normal", description="initialization of the first prompt: N(0, 0.02), or U(-1, 1) as in the authors' code"
    )

    @field_validator("layers", mode="before")
    @classmethod
    def expand_range(cls, value: Any) -> Any:
        """Expand '0-8' to 0, 1, ... 8."""
        ends = re.fullmatch(r"(\d+)-(\d+)", value) if isinstance(value, str) else None
        if ends and int(ends[1]) <= int(ends[2]):
            return tuple(range(int(ends[1]), int(ends[2]) + 1))
        return (value,) if isinstance(value, int) else value


class Prefix(Adaptation):
    """Prefix rows for the keys and values of each image: `rows` is (L, 2, B, n, D)."""

    def __init__(self, rows: Tensor, layers: Sequence[int]) -> None:
        # Unbind once: indexing layer by layer would allocate a gradient of full size for each.
        self.rows = rows.flatten(0, 1).unbind()  # 2 L of (B, n, D)
        self.slot = {layer: slot for slot, layer in enumerate(layers)}

    @classmethod
    def shared(cls, prompt: Tensor, layers: Sequence[int], batch: int) -> Prefix:
        """Return a prefix with the same prompt (L, 2, n, D) for every image of a batch."""
        return cls(prompt.unsqueeze(2).expand(-1, -1, batch, -1, -1), layers)

    def prefix(self, layer: int, x: Tensor) -> tuple[Tensor, Tensor] | None:
        if layer not in self.slot:
            return None
        slot = 2 * self.slot[layer]
        return self.rows[slot], self.rows[slot + 1]

    def count_prefix_rows(self, layer: int) -> int | None:
        return self.rows[0].shape[1] if layer in self.slot else 0

    def select(self, images: slice) -> Prefix:
        part = copy.copy(self)
        part.rows = tuple(rows[images] for rows in self.rows)
        return part


class ModulatedPrefix(Prefix):
    """Prefix rows, and a scale and a shift of every input and output of a block's attention and MLP.

    `rows` is (L, 2, B, n + 4, D). The last four pairs are the scale s and the shift t of the
    `PLACES`, in their order: x becomes x + f (s x + t), so zeros change nothing. The factor f makes
    them learn more slowly than the prefix.
    """

    def __init__(self, rows: Tensor, layers: Sequence[int], factor: float) -> None:
        super().__init__(rows[:, :, :, : -len(PLACES)], layers)
        pairs = factor * rows[:, :, :, -len(PLACES) :].unsqueeze(4)  # (L, 2, B, 4, 1, D)
        self.modulations = pairs.permute(0, 3, 1, 2, 4, 5).flatten(0, 2).unbind()  # 8 L of (B, 1, D)

    def modulation(self, layer: int, place: Place) -> tuple[Tensor, Tensor] | None:
        if layer not in self.slot:
            return None
        slot = 2 * (len(PLACES) * self.slot[layer] + PLACES.index(place))
        return self.modulations[slot], self.modulations[slot + 1]

    def select(self, images: slice) -> Prefix:
        part = super().select(images)
        assert isinstance(part, ModulatedPrefix)
        part.modulations = tuple(each[images] for each in self.modulations)
        return part


def resolve_layers(config: ViTConfig, options: PrefixOptions) -> tuple[int, ...]:
    """Return the prompted layers; a layer that the backbone does not have is an `OptionError`."""
    if isinstance(options.layers, str):
        count = config.depth if options.layers == "all" else int(options.layers.removeprefix("first-"))
        return tuple(range(min(count, config.depth)))
    for layer in options.layers:
        if not 0 <= layer < config.depth:
            raise OptionError(f"option 'layers' names layer {layer}, but this backbone has layers 0 to {config.depth - 1}")
    return tuple(sorted(set(options.layers)))


def draw_prompt(config: ViTConfig, options: PrefixOptions, generator: torch.Generator) -> Tensor:
    """Draw an initial prompt: (L, 2, n, D), n rows of keys and n of values."""
    return draw_rows((len(resolve_layers(config, options)), 2, options.length // 2, config.width), options, generator)


def draw_rows(shape: Sequence[int], options: PrefixOptions, generator: torch.Generator) -> Tensor:
    """Draw initial prompt values according to the option `init`."""
    rows = torch.empty(tuple(shape))
    if options.init == "uniform":
        return rows.uniform_(-1, 1, generator=generator)
    return rows.normal_(0, 0.02, generator=generator)
