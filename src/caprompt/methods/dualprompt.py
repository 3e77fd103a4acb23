"""DualPrompt: complementary prompting (Wang et al., ECCV 2022, arXiv:2204.04799).

Two kinds of prefix prompts for a frozen ViT: a general prompt g in the first layers, trained by all
tasks, and in the following layers one prompt e_t per task t, with a key k_t.
The query q of an image is its class-token feature from a pass without prompts.

    training:    f(x; g, e_t) with t the image's task
                 loss = CE among the task's classes - pull * mean_x cos(q(x), k_t)
    prediction:  f(x; g, e_t) with t = argmax_i cos(q(x), k_i)

A new task's prompt is initialized with the previous one's. Prompts and keys of earlier tasks are
frozen.

Shapes: B images, T tasks, C classes, L prompted layers, n rows of keys (and as many of values),
D width.
"""

from __future__ import annotations

from typing import ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from caprompt.backbones.vit import Adaptation, Stem, ViT
from caprompt.methods.components.growing_rows import GrowingRows
from caprompt.methods.components.heads import cosines
from caprompt.methods.components.prefix import Layers, Prefix, PrefixOptions, draw_rows, resolve_layers
from caprompt.methods.registry import register
from caprompt.methods.templates import SelectedPromptMethod

__all__ = ["DualPrompt", "DualPromptOptions"]


class DualPromptOptions(PrefixOptions):
    """Options of the two kinds of prompts and of the key loss."""

    layers: Layers = Field("first-5", description="layers with a prompt: 'first-5', 'all', a list, or a range such as '0-8'")
    length: int = Field(10, ge=2, multiple_of=2, description="rows of a task's prompt per layer, keys and values together")
    general_layers: int = Field(
        2, ge=0, description="how many of `layers`, from the first, have the general prompt; all but one at most"
    )
    general_length: int = Field(
        10, ge=2, multiple_of=2, description="rows of the general prompt per layer, keys and values together"
    )
    init: Literal["normal", "uniform"] = Field("uniform", description="initialization of prompts and keys: U(-1, 1), or N(0, 0.02)")
    pull: float = Field(1.0, gt=0, description="weight of the loss that pulls a task's key towards its images' queries")


@register("dualprompt")
class DualPrompt(SelectedPromptMethod):
    """A general prompt for all tasks, and one prompt per task, selected by its key."""

    summary = "a general prompt and one per task, selected per image by its key (ECCV 2022)"
    options_class = DualPromptOptions
    can_train_in_threads = True
    check_options: ClassVar = {**SelectedPromptMethod.check_options, "length": 4}
    check_variants: ClassVar = ({"general_layers": 0},)
    options: DualPromptOptions
    trains_on_known_classes = True

    def __init__(self, vit: ViT, options: DualPromptOptions) -> None:
        super().__init__(vit, options)
        layers, width = resolve_layers(vit.config, options), vit.config.width
        first = min(options.general_layers, len(layers) - 1)
        self.general_layers, self.task_layers = layers[:first], layers[first:]
        self.general = nn.Parameter(torch.zeros(first, 2, options.general_length // 2, width))  # (L, 2, n, D)
        self.prompts = GrowingRows(len(self.task_layers), 2, options.length // 2, width)  # (T, L, 2, n, D)
        self.keys = GrowingRows(width)  # (T, D)

    def begin_task(self, num_classes: int, generator: torch.Generator) -> None:
        """Add a prompt, initialized with the previous one, and a random key."""
        super().begin_task(num_classes, generator)
        if len(self.task_sizes) == 1:
            self.general.data.copy_(draw_rows(self.general.shape, self.options, generator))
        self.prompts.append_from_newest(draw_rows((1, *self.prompts.newest.shape[1:]), self.options, generator))
        self.keys.append(draw_rows((1, self.vit.config.width), self.options, generator))

    def key_similarities(self, stem: Stem) -> Tensor:
        """Compute the cosine of each image's query with every task's key: (B, T)."""
        return cosines(self.vit(stem), self.keys())

    def select_task(self, stem: Stem) -> Tensor:
        return self.key_similarities(stem).argmax(dim=1)

    def extract_features(self, stem: Stem, tasks: Tensor) -> Tensor:
        general = Prefix.shared(self.general, self.general_layers, batch=tasks.shape[0])
        own = self.prompts()[tasks].permute(1, 2, 0, 3, 4)  # (B, L, 2, n, D) -> (L, 2, B, n, D)
        features: Tensor = self.vit(stem, _DisjointPrefixes(general, Prefix(own, self.task_layers)))
        return features

    def loss(self, images: Tensor, labels: Tensor) -> dict[str, Tensor]:
        """Return the cross entropy under each image's own task prompt, and the pull of its key."""
        stem, tasks = self.vit.stem(images), self.task_of_class[labels]
        own = self.key_similarities(stem).gather(1, tasks.unsqueeze(1))  # (B, 1)
        logits = self.head(self.extract_features(stem, tasks))
        return {"ce": self.own_task_cross_entropy(logits, labels), "pull": -self.options.pull * own.mean()}


class _DisjointPrefixes(Adaptation):
    """Two prefixes that have no layer in common."""

    def __init__(self, first: Prefix, second: Prefix) -> None:
        self.first, self.second = first, second

    def prefix(self, layer: int, x: Tensor) -> tuple[Tensor, Tensor] | None:
        return self.first.prefix(layer, x) or self.second.prefix(layer, x)
