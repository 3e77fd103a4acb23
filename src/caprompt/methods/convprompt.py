"""ConvPrompt: convolutional prompt generation (Roy et al., CVPR 2024, arXiv:2403.20317).

Each prompted layer has an embedding E shared by all tasks, and small filters that turn it into rows
of keys and values. A task adds its own filters, each with a key. The weight of a filter for an
image is the similarity of its key to the class token at the layer's input: there is no query pass.

    s_p(x)   = cos(match(class token), key_p)              one weight per filter p of any task
    own_l    = sum_p s_p(x) conv(E_l, filter_p)            for each head, keys and values
    prefix_l = own_l + own_{l-1}

Filters of earlier tasks are frozen. Keys stay as they are drawn, orthogonal to each other
(`filter_keys`). E and `match`, a two-layer MLP, are trained by every task, with a penalty on their
change:

    L = CE(among the own task's classes) + retain (|E - E_old|_1 + |match - match_old|_1)

A filter is a k x k convolution for each layer, for keys and values, and for each head. Its output
does not depend on the image: all filters are applied at once as one grouped convolution, and only
the weighted sum is computed per image.

A copy of the backbone's LayerNorms is trained, too (`norms`): at the full learning rate by the
first task, and at 0.005 of it by later ones.

The first task adds `filters` filters, a later one ceil((1 - similarity) filters), at least one: the
more similar the new classes are to the old ones, the fewer. The similarity is the mean, over the
new classes, of the largest cosine of their mean feature with that of an old class, in the un-adapted
backbone. With a file of class descriptions it depends on how many attributes of earlier classes
recur in the new classes. The file is plain text with one line per class, `name: attribute,
attribute, ...`:

    tabby: striped fur, whiskers, green eyes
    sparrow: brown feathers, short beak

The similarity of two attributes is the Jaccard index of their sets of words (lower case, without
punctuation). The similarity of old to new classes is the mean, over the attributes of the old
classes, of the similarity to the most similar attribute of the new ones: 1 if every old attribute
recurs, 0 if no word does.

Shapes: B images, L prompted layers, H heads of d = D / H, n rows of keys (and as many of values),
F filters, K width of their keys.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar, Literal

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.utils import parameters_to_vector

from caprompt.backbones.vit import Adaptation, ViT
from caprompt.errors import DataError, OptionError
from caprompt.methods.base import Batches
from caprompt.methods.components.growing_rows import GrowingRows, draw_orthonormal_rows
from caprompt.methods.components.heads import cosines, linear_init
from caprompt.methods.components.prefix import Layers, PrefixOptions, draw_rows, resolve_layers
from caprompt.methods.components.statistics import Statistics
from caprompt.methods.registry import register
from caprompt.methods.templates import OwnTaskMethod

__all__ = [
    "Attribute",
    "ConvPrompt",
    "ConvPromptOptions",
    "ConvolvedPrefix",
    "FilterBank",
    "TrainedNorms",
    "attribute_similarity",
    "class_similarity",
    "collect_attributes",
    "mean_similarity",
    "read_descriptions",
    "split_words",
]

LATER_NORM_RATE = 0.005  # learning rate of the norms after the first task, relative to all others

# -- similarity of classes -------------------------------------------------------------------------


def mean_similarity(new: Tensor, old: Tensor) -> float:
    """Return the mean, over new class means (c, D), of the largest cosine with an old one (k, D).

    >>> mean_similarity(torch.tensor([[1.0, 0.0], [0.0, 1.0]]), torch.tensor([[2.0, 0.0], [3.0, 4.0]]))
    0.9
    """
    return round(float(cosines(new, old).amax(dim=1).mean()), 6)  # noise in the last digit should not add a filter


# -- class descriptions ----------------------------------------------------------------------------

Attribute = frozenset[str]  # the words of one attribute


def read_descriptions(path: str | Path) -> dict[str, list[Attribute]]:
    """Read the attributes of every class from a file of descriptions."""
    try:
        lines = Path(path).read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"the descriptions '{path}' cannot be read: {error}") from error
    descriptions: dict[str, list[Attribute]] = {}
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        name, _, rest = line.partition(":")
        attributes = [words for part in rest.split(",") if (words := split_words(part))]
        if not attributes:
            raise DataError(f"line {number} of '{path}' should read 'name: attribute, attribute, ...', not '{line.strip()}'")
        descriptions[name.strip()] = attributes
    return descriptions


def split_words(text: str) -> Attribute:
    """Return the set of words of a text, in lower case.

    >>> sorted(split_words(" Green-ish eyes, green!"))
    ['eyes', 'green', 'ish']
    """
    return frozenset(re.findall(r"\w+", text.lower()))


def collect_attributes(names: Sequence[str], descriptions: Mapping[str, list[Attribute]], path: str | Path) -> list[Attribute]:
    """Return the attributes of some classes; raise an error for a class without description."""
    for name in names:
        if name not in descriptions:
            raise DataError(f"'{path}' does not describe the class '{name}'; add a line '{name}: attribute, attribute, ...'")
    return [attribute for name in names for attribute in descriptions[name]]


def attribute_similarity(first: Attribute, second: Attribute) -> float:
    """Return the Jaccard index of two sets of words.

    >>> attribute_similarity(split_words("striped fur"), split_words("soft striped fur"))
    0.6666666666666666
    """
    return len(first & second) / len(first | second)


def class_similarity(old: Sequence[Attribute], new: Sequence[Attribute]) -> float:
    """Return how much of the old classes' attributes recurs in the new classes, from 0 to 1."""
    return sum(max(attribute_similarity(attribute, other) for other in new) for attribute in old) / len(old)


# -- filters ---------------------------------------------------------------------------------------


class FilterBank(nn.Module):
    """The filters of all tasks with their keys; the newest task's filters, and maybe its keys, are trained."""

    def __init__(self, layers: int, heads: int, kernel: int, key_width: int, trains_keys: bool = True) -> None:
        super().__init__()
        self.trains_keys = trains_keys
        self.weight = GrowingRows(layers, 2, heads, kernel, kernel)  # (F, L, 2, H, k, k); axis 2: keys or values
        self.bias = GrowingRows(layers, 2, heads)  # (F, L, 2, H)
        self.keys = GrowingRows(key_width).requires_grad_(trains_keys)  # (F, K); keys that are not trained are all earlier ones

    def grow(self, count: int, generator: torch.Generator) -> None:
        """Freeze the filters and add `count` new ones.

        Their keys are orthogonal to all others, as far as the key width allows.
        """
        inputs = self.weight.newest.shape[-1] ** 2
        for rows in (self.weight, self.bias):
            rows.append(linear_init((count, *rows.newest.shape[1:]), inputs, generator))
        keys = draw_orthonormal_rows(count, self.keys(), generator)
        if self.trains_keys:
            self.keys.append(keys)
        else:
            self.keys.earlier = torch.cat([self.keys.earlier, keys])

    def drop_newest(self, count: int) -> None:
        """Remove the last `count` of the newest filters."""
        kept = len(self.bias.newest) - count
        for rows in (self.weight, self.bias, *([self.keys] if self.trains_keys else [])):
            rows.newest = nn.Parameter(rows.newest.detach()[:kept].clone())
        if not self.trains_keys:
            self.keys.earlier = self.keys.earlier[: len(self.keys.earlier) - count].clone()

    def forward(self, embedding: Tensor) -> Tensor:
        """Apply all filters to E: (L, 2, H, n + k - 1, d + k - 1) -> (L, F, 2, n, D)."""
        outputs = _apply_filters(embedding, self.weight.newest, self.bias.newest)
        if len(self.bias.earlier):  # a separate call, so that no gradient is computed for frozen filters
            outputs = torch.cat([_apply_filters(embedding, self.weight.earlier, self.bias.earlier), outputs], dim=3)
        return outputs.permute(0, 3, 1, 4, 2, 5).flatten(4)  # (L, 2, H, F, n, d) -> (L, F, 2, n, H d)


def _apply_filters(embedding: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Convolve each embedding with its own filters: (L, 2, H, F, n, d).

    One convolution with a group for each layer, keys or values, and head.
    """
    channels, weight, bias = embedding.flatten(0, 2), weight.movedim(0, 3), bias.movedim(0, 3)  # (L 2 H, n + k - 1, d + k - 1), ...
    outputs = F.conv2d(channels.unsqueeze(0), weight.flatten(0, 3).unsqueeze(1), bias.flatten(), groups=channels.shape[0])
    return outputs.reshape(*bias.shape, *outputs.shape[2:])


# -- norms -----------------------------------------------------------------------------------------


class TrainedNorms(nn.Module):
    """Trained weights and biases for the LayerNorms of a ViT, in the blocks and after them.

    They are start + rate * change, where only `change` is trained, from zero in every task. Adam's
    steps do not depend on the scale of a gradient, so `rate` is a factor on the learning rate.
    """

    start: Tensor  # (2 L + 1, 2, D): weight and bias of each norm when the task began

    def __init__(self, vit: ViT) -> None:
        super().__init__()
        self.names = [f"blocks.{layer}.norm{number}" for layer in range(vit.config.depth) for number in (1, 2)] + ["norm"]
        values = dict(vit.named_parameters())
        parts = [torch.stack([values[f"{name}.weight"], values[f"{name}.bias"]]) for name in self.names]
        self.register_buffer("start", torch.stack(parts).detach().float())
        self.change = nn.Parameter(torch.zeros_like(self.start))
        self.rate = 1.0

    @torch.no_grad()
    def begin_later_task(self) -> None:
        """Make the present values the start of a new task, which changes them more slowly."""
        self.start += self.rate * self.change
        self.change.zero_()
        self.rate = LATER_NORM_RATE

    def forward(self, dtype: torch.dtype) -> dict[str, Tensor]:
        """Return the values by parameter name; those in the blocks in the dtype of the ViT."""
        rows = dict(zip(self.names, (self.start + self.rate * self.change).unbind(), strict=True))
        cast = {name: row if name == "norm" else row.to(dtype) for name, row in rows.items()}
        return {f"{name}.{part}": row[index] for name, row in cast.items() for index, part in enumerate(("weight", "bias"))}


# -- method ----------------------------------------------------------------------------------------


class ConvPromptOptions(PrefixOptions):
    """Options of the filters and of the penalty on shared parameters."""

    length: int = Field(40, ge=2, multiple_of=2, description="prompt rows per layer, keys and values together")
    layers: Layers = Field("first-7", description="layers with a prompt: 'first-7', 'all', a list, or a range such as '0-8'")
    init: Literal["normal", "uniform"] = Field("uniform", description="initialization of the embedding: U(-1, 1), or N(0, 0.02)")
    filters: int = Field(5, ge=1, description="filters that the first task adds, and the maximum for later ones")
    filter_growth: Literal["similarity", "constant"] = Field(
        "similarity",
        description="filters of later tasks without descriptions: fewer for classes that resemble old ones, or always `filters`",
    )
    filter_keys: Literal["fixed", "trained"] = Field("fixed", description="keys of the filters: as drawn, or trained with them")
    norms: Literal["trained", "frozen"] = Field("trained", description="LayerNorms of the backbone: a trained copy, or frozen")
    kernel: int = Field(17, ge=1, description="kernel size of a filter")
    retain: float = Field(0.01, ge=0, description="weight of the L1 penalty on changes of the shared parameters")
    descriptions: str = Field("", description="text file, 'name: attribute, ...' per class, that sets the filters of each task")

    before_added: ClassVar[Mapping[str, Any]] = MappingProxyType(
        {"filter_growth": "constant", "filter_keys": "trained", "norms": "frozen"}
    )


class ConvolvedPrefix(Adaptation):
    """The prefixes of one pass: filter outputs, weighted by each image's class token at a layer."""

    def __init__(self, method: ConvPrompt) -> None:
        self.slot = {layer: slot for slot, layer in enumerate(method.layers)}
        self.match = method.match
        self.outputs: Tensor = method.bank(method.embedding)  # (L, F, 2, n, D)
        self.keys = method.bank.keys()  # (F, K)
        self.previous: Tensor | None = None  # own_{l-1}

    def prefix(self, layer: int, x: Tensor) -> tuple[Tensor, Tensor] | None:
        if layer not in self.slot:
            return None
        own = torch.einsum("bf,fknd->kbnd", self.filter_weights(x), self.outputs[self.slot[layer]])  # (2, B, n, D)
        rows = own if self.previous is None else own + self.previous
        self.previous = own
        return rows[0], rows[1]

    def filter_weights(self, x: Tensor) -> Tensor:
        """Compute s, the filter weights of each image at a layer's input: (B, N, D) -> (B, F)."""
        class_token = x[:, 0].to(self.keys.dtype)
        return cosines(self.match(class_token), self.keys)


@register("convprompt")
class ConvPrompt(OwnTaskMethod):
    """Prompts generated by convolving shared embeddings with the filters of all tasks."""

    summary = "prompts generated from shared embeddings by the tasks' filters, in a single pass (CVPR 2024)"
    options_class = ConvPromptOptions
    check_options: ClassVar = {**OwnTaskMethod.check_options, "length": 4}
    check_variants: ClassVar = ({"filter_growth": "constant", "filter_keys": "trained", "norms": "frozen"},)
    options: ConvPromptOptions

    def __init__(self, vit: ViT, options: ConvPromptOptions) -> None:
        super().__init__(vit, options)
        if options.recompute and options.norms == "trained":
            # A block that is computed again in the backward pass would read the frozen norms.
            raise OptionError("recompute=true needs norms='frozen' in convprompt: blocks are computed again with the frozen norms")
        width, heads, margin = vit.config.width, vit.config.heads, options.kernel - 1
        self.layers = resolve_layers(vit.config, options)
        rows, columns = options.length // 2 + margin, width // heads + margin
        self.embedding = nn.Parameter(torch.zeros(len(self.layers), 2, heads, rows, columns))
        self.match = nn.Sequential(nn.Linear(width, width // 2), nn.ReLU(), nn.Linear(width // 2, width // 4))
        self.bank = FilterBank(len(self.layers), heads, options.kernel, width // 4, options.filter_keys == "trained")
        self.norms = TrainedNorms(vit) if options.norms == "trained" else None
        by_images = options.filter_growth == "similarity" and not options.descriptions
        self.prototypes = Statistics(width) if by_images else None  # of features of the un-adapted backbone
        self.register_buffer("embedding_before", torch.zeros_like(self.embedding))
        self.register_buffer("match_before", torch.zeros_like(parameters_to_vector(self.match.parameters())))
        self.register_buffer("filter_counts", torch.zeros(0, dtype=torch.long))
        self.next_filter_counts: Iterator[int] = iter(())  # of the next tasks, where they differ from the fixed number

    embedding_before: Tensor  # E_old, after the last call
    match_before: Tensor  # match_old, flattened
    filter_counts: Tensor  # filters that each task added, (T,)

    @property
    def learning_state(self) -> tuple[str, ...]:
        """The class means that the number of filters depends on."""
        return ("prototypes",)

    # -- growth ------------------------------------------------------------------------------------

    def set_class_names(self, names: Sequence[str]) -> None:
        """With descriptions, set the number of filters that the next task adds."""
        path, old = self.options.descriptions, self.num_classes
        if path:
            descriptions = read_descriptions(path)
            before, new = (collect_attributes(part, descriptions, path) for part in (names[:old], names[old:]))
            similarity = class_similarity(before, new) if before else 0.0
            self.next_filter_counts = iter([self.count_filters(similarity)])

    def begin_task(self, num_classes: int, generator: torch.Generator) -> None:
        """Freeze the filters and add new ones; the first task initializes shared parameters."""
        super().begin_task(num_classes, generator)
        if self.prototypes is not None:
            self.prototypes.grow(num_classes)
        if self.norms is not None and len(self.task_sizes) > 1:
            self.norms.begin_later_task()
        count = next(self.next_filter_counts, self.options.filters)
        self.filter_counts = torch.cat([self.filter_counts, self.filter_counts.new_full((1,), count)])
        self.bank.grow(count, generator)
        if len(self.task_sizes) == 1:
            self.embedding.data.copy_(draw_rows(self.embedding.shape, self.options, generator))
            for linear in (layer for layer in self.match if isinstance(layer, nn.Linear)):
                for parameter in linear.parameters():
                    parameter.data.copy_(linear_init(parameter.shape, linear.in_features, generator))

    @torch.no_grad()
    def prepare(self, batches: Batches, generator: torch.Generator) -> None:
        """Without descriptions, measure the similarity of the new classes, and drop the filters that are not needed."""
        if self.prototypes is None:
            return
        is_old = self.prototypes.count > 0  # (C,)
        self.prototypes.observe_batches((self.vit(images), labels) for images, labels in batches)
        is_new = ~is_old & (self.prototypes.count > 0)
        if is_old.any() and is_new.any():
            count = self.count_filters(mean_similarity(self.prototypes.mean[is_new], self.prototypes.mean[is_old]))
            self.bank.drop_newest(int(self.filter_counts[-1]) - count)
            self.filter_counts[-1] = count

    def count_filters(self, similarity: float) -> int:
        """Return the number of filters of a task whose classes are this similar to the old ones."""
        return max(1, math.ceil((1 - similarity) * self.options.filters))

    def restore(self, task_sizes: Iterable[int], state: Mapping[str, Tensor]) -> None:
        """Restore a saved state, in which each task has its own number of filters."""
        self.next_filter_counts = iter(state.get("filter_counts", self.filter_counts).tolist())
        super().restore(task_sizes, state)

    @property
    def can_predict_in_threads(self) -> bool:
        """Not with trained norms, which `functional_call` puts into the backbone for the time of a call."""
        return self.norms is None

    # -- training ----------------------------------------------------------------------------------

    def logits(self, images: Tensor) -> Tensor:
        """Compute logits (B, C) in one pass."""
        arguments = (images, ConvolvedPrefix(self))
        norms = {} if self.norms is None else self.norms(self.vit.dtype)
        features: Tensor = functional_call(self.vit, norms, arguments) if norms else self.vit(*arguments)
        logits: Tensor = self.head(F.layer_norm(features, features.shape[1:]))
        return logits

    def loss(self, images: Tensor, labels: Tensor) -> dict[str, Tensor]:
        """Return the cross entropy and, from the second task on, the penalty of `retain`."""
        parts = super().loss(images, labels)
        if self.options.retain and len(self.task_sizes) > 1:
            change = (self.embedding - self.embedding_before).abs().sum()
            change = change + (parameters_to_vector(self.match.parameters()) - self.match_before).abs().sum()
            parts["retain"] = self.options.retain * change
        return parts

    @torch.no_grad()
    def consolidate(self, batches: Batches, generator: torch.Generator) -> None:
        """Store the shared parameters as the reference of the next task's penalty."""
        self.embedding_before.copy_(self.embedding)
        self.match_before.copy_(parameters_to_vector(self.match.parameters()))
