"""ConvPrompt: convolutional prompt generation (Roy et al., CVPR 2024, arXiv:2403.20317).

Each prompted layer has an embedding E that all tasks share, and small filters that turn it into key and value rows. A task brings
filters of its own, each with a key; a filter counts for an image as much as its key resembles the image's class token at the
layer's input, so there is no query pass:

    s_p(x)  = cos(match(class token), key_p)                                   one number for each filter p of any task
    own_l   = sum_p s_p(x) conv(E_l, filter_p)                                 for each head, keys and values
    prefix_l = own_l + own_{l-1}

Earlier tasks' filters and keys are frozen. E and `match`, two linear maps, go on learning but are held near where they were:

    L = CE(among the image's own task's classes) + retain |E - E_old|_1 + retain |match - match_old|_1

The filters do not depend on the image: all of them are applied in one grouped convolution, and images only mix what comes out.
The number of filters of a task is fixed, or with a file of descriptions (`descriptions.py`) the smaller, the more of the earlier
classes' attributes come again in the new classes'.

Shapes: B images, L prompted layers, H heads of d = D / H, n rows of keys (and as many of values), F filters, K width of their keys.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Literal

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor, nn
from torch.nn.utils import parameters_to_vector

from caprompt.backbones.vit import Adaptation, ViT
from caprompt.errors import DataError
from caprompt.methods.base import Batches
from caprompt.methods.components.growing_rows import GrowingRows, orthonormal_rows
from caprompt.methods.components.heads import cosines, linear_init
from caprompt.methods.components.prefix import Layers, PrefixOptions, prompted_layers, random_rows
from caprompt.methods.registry import register
from caprompt.methods.templates import OwnTaskMethod

__all__ = [
    "Attribute",
    "ConvPrompt",
    "ConvPromptOptions",
    "FilterBank",
    "attributes_of",
    "likeness",
    "read_descriptions",
    "similarity",
    "words_of",
]

Attribute = frozenset[str]  # the words of one attribute


def read_descriptions(path: str | Path) -> dict[str, list[Attribute]]:
    """The attributes of every class in a file of descriptions."""
    try:
        lines = Path(path).read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"the descriptions '{path}' cannot be read: {error}") from error
    found: dict[str, list[Attribute]] = {}
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        name, _, rest = line.partition(":")
        attributes = [words for part in rest.split(",") if (words := words_of(part))]
        if not attributes:
            raise DataError(f"line {number} of '{path}' should read 'name: attribute, attribute, ...', not '{line.strip()}'")
        found[name.strip()] = attributes
    return found


def words_of(text: str) -> Attribute:
    """The set of words.

    >>> sorted(words_of(" Green-ish eyes, green!"))
    ['eyes', 'green', 'ish']
    """
    return frozenset(re.findall(r"\w+", text.lower()))


def attributes_of(names: Sequence[str], descriptions: Mapping[str, list[Attribute]], path: str | Path) -> list[Attribute]:
    """All attributes of some classes; each of them must be described."""
    for name in names:
        if name not in descriptions:
            raise DataError(f"'{path}' does not describe the class '{name}'; add a line '{name}: attribute, attribute, ...'")
    return [attribute for name in names for attribute in descriptions[name]]


def likeness(one: Attribute, other: Attribute) -> float:
    """Shared words over all words.

    >>> likeness(words_of("striped fur"), words_of("soft striped fur"))
    0.6666666666666666
    """
    return len(one & other) / len(one | other)


def similarity(old: Sequence[Attribute], new: Sequence[Attribute]) -> float:
    """How much of the old classes' attributes comes again in the new classes', from 0 to 1."""
    return sum(max(likeness(attribute, other) for other in new) for attribute in old) / len(old)


class FilterBank(nn.Module):
    """The filters of all tasks; the newest task's learn."""

    def __init__(self, layers: int, heads: int, kernel: int, key_width: int) -> None:
        super().__init__()
        self.weight = GrowingRows(layers, 2, heads, kernel, kernel)  # (F, L, 2, H, k, k): a layer, its keys or values, one head
        self.bias = GrowingRows(layers, 2, heads)  # (F, L, 2, H)
        self.keys = GrowingRows(key_width)  # (F, K)

    def grow(self, count: int, generator: torch.Generator) -> None:
        """Freeze what there is and add so many filters; their keys start orthogonal to all others, as far as there is room."""
        inputs = self.weight.newest.shape[-1] ** 2
        for rows in (self.weight, self.bias):
            rows.append(linear_init((count, *rows.newest.shape[1:]), inputs, generator))
        self.keys.append(orthonormal_rows(count, self.keys(), generator))

    def forward(self, embedding: Tensor) -> Tensor:
        """What every filter makes of the embeddings: (L, 2, H, n + k - 1, d + k - 1) -> (L, F, 2, n, D)."""
        made = convolved(embedding, self.weight.newest, self.bias.newest)
        if len(self.bias.earlier):  # apart, so that no gradient is computed for frozen filters
            made = torch.cat([convolved(embedding, self.weight.earlier, self.bias.earlier), made], dim=3)
        return made.permute(0, 3, 1, 4, 2, 5).flatten(4)  # (L, 2, H, F, n, d) -> (L, F, 2, n, H d)


def convolved(embedding: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Each place's embedding under each of its own filters, as one convolution with a group for each place: (L, 2, H, F, n, d)."""
    places, weight, bias = embedding.flatten(0, 2), weight.movedim(0, 3), bias.movedim(0, 3)  # (L 2 H, n + k - 1, d + k - 1), ...
    made = F.conv2d(places.unsqueeze(0), weight.flatten(0, 3).unsqueeze(1), bias.flatten(), groups=places.shape[0])
    return made.reshape(*bias.shape, *made.shape[2:])


class ConvPromptOptions(PrefixOptions):
    """The filters and how far shared parts may move."""

    length: int = Field(40, ge=2, multiple_of=2, description="prompt rows per layer, keys and values counted together")
    layers: Layers = Field(
        "first-7", description="the layers that are prompted: 'first-7', 'all', a list, or a range such as '0-8'"
    )
    init: Literal["normal", "uniform"] = Field("uniform", description="first embedding: U(-1, 1), or N(0, 0.02)")
    filters: int = Field(5, ge=1, description="filters that a task brings; with descriptions, the most that it brings")
    kernel: int = Field(17, ge=1, description="side of a filter")
    retain: float = Field(0.01, ge=0, description="weight of the distance of shared parts from where they were")
    descriptions: str = Field("", description="text file, 'name: attribute, ...' a line for each class, that sets a task's filters")


class ConvolvedPrefix(Adaptation):
    """The prefixes of one pass: what the filters made is mixed for each image by its class token at each layer."""

    def __init__(self, method: ConvPrompt) -> None:
        self.slot = {layer: slot for slot, layer in enumerate(method.layers)}
        self.match = method.match
        self.made: Tensor = method.bank(method.embedding)  # (L, F, 2, n, D)
        self.keys = method.bank.keys()  # (F, K)
        self.before: Tensor | None = None  # what the previous layer made for itself

    def prefix(self, layer: int, x: Tensor) -> tuple[Tensor, Tensor] | None:
        if layer not in self.slot:
            return None
        own = torch.einsum("bf,fknd->kbnd", self.shares(x), self.made[self.slot[layer]])  # (2, B, n, D)
        rows = own if self.before is None else own + self.before
        self.before = own
        return rows[0], rows[1]

    def shares(self, x: Tensor) -> Tensor:
        """s: how much each filter counts for each image at this layer's input, (B, N, D) -> (B, F)."""
        return cosines(self.match(x[:, 0].to(self.keys.dtype)), self.keys)  # of the class token


@register("convprompt")
class ConvPrompt(OwnTaskMethod):
    """Prompts made by convolving shared embeddings with the filters of all tasks."""

    summary = "prompts made from shared embeddings by the tasks' filters, in a single pass (CVPR 2024)"
    options_class = ConvPromptOptions
    options: ConvPromptOptions

    def __init__(self, vit: ViT, options: ConvPromptOptions) -> None:
        super().__init__(vit, options)
        width, heads, margin = vit.config.width, vit.config.heads, options.kernel - 1
        self.layers = prompted_layers(vit.config, options)
        rows, columns = options.length // 2 + margin, width // heads + margin
        self.embedding = nn.Parameter(torch.zeros(len(self.layers), 2, heads, rows, columns))
        self.match = nn.Sequential(nn.Linear(width, width // 2), nn.ReLU(), nn.Linear(width // 2, width // 4))
        self.bank = FilterBank(len(self.layers), heads, options.kernel, width // 4)
        self.register_buffer("embedding_before", torch.zeros_like(self.embedding))
        self.register_buffer("match_before", torch.zeros_like(parameters_to_vector(self.match.parameters())))
        self.register_buffer("filter_counts", torch.zeros(0, dtype=torch.long))
        self.planned: Iterator[int] = iter(())  # filters of the tasks to come, where it is not the fixed number

    embedding_before: Tensor  # the shared parts as the last call left them
    match_before: Tensor
    filter_counts: Tensor  # filters that each task brought, (T,)

    # -- growth ------------------------------------------------------------------------------------------------------------

    def announce(self, names: Sequence[str]) -> None:
        """With descriptions, settle the next task's filters: ceil((1 - similarity) x filters), at least one."""
        path, old = self.options.descriptions, self.num_classes
        if path:
            described = read_descriptions(path)
            before, new = (attributes_of(part, described, path) for part in (names[:old], names[old:]))
            alike = similarity(before, new) if before else 0.0
            self.planned = iter([max(1, math.ceil((1 - alike) * self.options.filters))])

    def begin_task(self, classes: int, generator: torch.Generator) -> None:
        """New filters; the previous ones are frozen. What tasks share gets its random start with the first one."""
        super().begin_task(classes, generator)
        count = next(self.planned, self.options.filters)
        self.filter_counts = torch.cat([self.filter_counts, self.filter_counts.new_full((1,), count)])
        self.bank.grow(count, generator)
        if len(self.task_sizes) == 1:
            self.embedding.data.copy_(random_rows(self.embedding.shape, self.options, generator))
            for linear in (layer for layer in self.match if isinstance(layer, nn.Linear)):
                for parameter in linear.parameters():
                    parameter.data.copy_(linear_init(parameter.shape, linear.in_features, generator))

    def restore(self, task_sizes: Iterable[int], state: Mapping[str, Tensor]) -> None:
        """How many filters each task brought is part of what was saved."""
        self.planned = iter(state.get("filter_counts", self.filter_counts).tolist())
        super().restore(task_sizes, state)

    # -- learning ----------------------------------------------------------------------------------------------------------

    def logits(self, images: Tensor) -> Tensor:
        """One pass: (B, C)."""
        features = self.vit(images, ConvolvedPrefix(self))
        logits: Tensor = self.head(F.layer_norm(features, features.shape[1:]))
        return logits

    def loss(self, images: Tensor, labels: Tensor) -> dict[str, Tensor]:
        """Cross entropy among the classes of each image's task, and from the second task on retain x the shared parts' moves."""
        parts = super().loss(images, labels)
        if self.options.retain and len(self.task_sizes) > 1:
            moved = (self.embedding - self.embedding_before).abs().sum()
            moved = moved + (parameters_to_vector(self.match.parameters()) - self.match_before).abs().sum()
            parts["retain"] = self.options.retain * moved
        return parts

    @torch.no_grad()
    def consolidate(self, batches: Batches, generator: torch.Generator) -> None:
        """Note where the shared parts are now."""
        self.embedding_before.copy_(self.embedding)
        self.match_before.copy_(parameters_to_vector(self.match.parameters()))
