"""Prefix prompts: rows of keys and values put in front of a block's own, shared by the methods that use them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Annotated, Any, Literal

import torch
from pydantic import Field, field_validator
from torch import Tensor

from caprompt.backbones.vit import Adaptation, ViTConfig
from caprompt.errors import OptionError
from caprompt.methods.options import Options

__all__ = ["Layers", "Prefix", "PrefixOptions", "prompted_layers", "random_prompt", "random_rows"]

Layers = Literal["all"] | Annotated[str, Field(pattern=r"^first-[1-9]\d*$")] | Annotated[tuple[int, ...], Field(min_length=1)]


class PrefixOptions(Options):
    """The shape and the start of prefix prompts."""

    length: int = Field(10, ge=2, multiple_of=2, description="prompt rows per layer, keys and values counted together")
    layers: Layers = Field(
        "all", description="the layers that are prompted, from 0; '0-8' is a range, 'first-5' as many as the backbone has of 0-4"
    )
    init: Literal["normal", "uniform"] = Field("normal", description="first prompt: N(0, 0.02), or U(-1, 1) as the paper's program")

    @field_validator("layers", mode="before")
    @classmethod
    def spread_range(cls, value: Any) -> Any:
        """'0-8' stands for 0, 1, ... 8."""
        ends = re.fullmatch(r"(\d+)-(\d+)", value) if isinstance(value, str) else None
        if ends and int(ends[1]) <= int(ends[2]):
            return tuple(range(int(ends[1]), int(ends[2]) + 1))
        return (value,) if isinstance(value, int) else value


class Prefix(Adaptation):
    """Key and value rows for each image of a batch at some layers: `rows` is (L, 2, B, n, D)."""

    def __init__(self, rows: Tensor, layers: Sequence[int]) -> None:
        # Taken apart at once: taking out a layer at a time, each would have a gradient as large as all of them together.
        self.rows = rows.flatten(0, 1).unbind()  # 2 L of (B, n, D)
        self.slot = {layer: slot for slot, layer in enumerate(layers)}

    @classmethod
    def shared(cls, prompt: Tensor, layers: Sequence[int], batch: int) -> Prefix:
        """The same prompt (L, 2, n, D) for every image of a batch."""
        return cls(prompt.unsqueeze(2).expand(-1, -1, batch, -1, -1), layers)

    def prefix(self, layer: int, x: Tensor) -> tuple[Tensor, Tensor] | None:
        if layer not in self.slot:
            return None
        slot = 2 * self.slot[layer]
        return self.rows[slot], self.rows[slot + 1]


def prompted_layers(config: ViTConfig, options: PrefixOptions) -> tuple[int, ...]:
    """The layers that get a prompt; every one that is named must exist."""
    if isinstance(options.layers, str):
        count = config.depth if options.layers == "all" else int(options.layers.removeprefix("first-"))
        return tuple(range(min(count, config.depth)))
    for layer in options.layers:
        if not 0 <= layer < config.depth:
            raise OptionError(f"option 'layers' names layer {layer}, but this backbone has layers 0 to {config.depth - 1}")
    return tuple(sorted(set(options.layers)))


def random_prompt(config: ViTConfig, options: PrefixOptions, generator: torch.Generator) -> Tensor:
    """A first prompt: (L, 2, n, D), with n rows of keys and n of values."""
    return random_rows((len(prompted_layers(config, options)), 2, options.length // 2, config.width), options, generator)


def random_rows(shape: Sequence[int], options: PrefixOptions, generator: torch.Generator) -> Tensor:
    """First values of what a prompt is made of, as option `init` has them."""
    rows = torch.empty(tuple(shape))
    if options.init == "uniform":
        return rows.uniform_(-1, 1, generator=generator)
    return rows.normal_(0, 0.02, generator=generator)
