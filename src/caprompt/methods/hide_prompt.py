"""HiDe-Prompt: hierarchical decomposition prompt (Wang et al., NeurIPS 2023, arXiv:2310.07234).

Class-incremental learning in three parts, each with its own learner:

    within a task         every task t has prefix prompts of its own,  P_t = (1 - m) p_t + m mean(P_0 ... P_{t-1})
    which task            a classifier on un-prompted features (`task_identity.py`) names the class, its task the prompt
    between tasks         the head is aligned with features drawn from the statistics of all classes

While a task trains, its features are also kept apart from each other and from where the earlier classes lie. With
M = [centres of the earlier classes; features of the batch], every row should be most similar to itself:

    L = CE(head f(x, P_t) among the task's classes) + contrast x CE(M M^T / 0.8, identity)

Both classifiers that span tasks learn in `consolidate`, from two sets of statistics: of features under the own task's prompt for
the head, of un-prompted features for the task identity. A training step thus needs one pass.

Shapes: B images, T tasks, C classes, L prompted layers, n rows of keys (and as many of values), D width.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor, nn

from caprompt.backbones.vit import Stem, ViT
from caprompt.methods.base import Batches
from caprompt.methods.components import alignment
from caprompt.methods.components.alignment import ReplayKind
from caprompt.methods.components.growing_rows import GrowingRows
from caprompt.methods.components.heads import append_rows, linear_init
from caprompt.methods.components.prefix import Layers, Prefix, PrefixOptions, prompted_layers, random_prompt
from caprompt.methods.registry import register
from caprompt.methods.templates import SelectedPromptMethod

__all__ = ["HiDePrompt", "HiDePromptOptions", "TaskIdentity", "contrastive_loss"]

TEMPERATURE = 0.8


class TaskIdentity(nn.Module):
    """A classifier that grows with the classes and learns only inside `learning`."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.width = width
        shapes = {"into": (2 * width, width), "into_bias": (2 * width,), "back": (width, 2 * width), "back_bias": (width,)}
        for name, shape in shapes.items():
            self.register_buffer(name, torch.zeros(shape))
        self.register_buffer("scale", torch.ones(width))
        self.register_buffer("shift", torch.zeros(width))
        self.register_buffer("rows", torch.zeros(0, width))
        self.register_buffer("rows_bias", torch.zeros(0))

    into: Tensor  # W1, (2 D, D)
    into_bias: Tensor  # (2 D,)
    back: Tensor  # W2, (D, 2 D)
    back_bias: Tensor  # (D,)
    scale: Tensor  # of the norm, (D,)
    shift: Tensor  # (D,)
    rows: Tensor  # V, (C, D)
    rows_bias: Tensor  # (C,)

    def grow(self, classes: int, generator: torch.Generator) -> None:
        """Further classes; with the first ones the hidden layer gets its random start. Biases start at zero."""
        if not len(self.rows):
            for weight in (self.into, self.back):
                weight.copy_(linear_init(weight.shape, weight.shape[1], generator))
        self.rows = append_rows(self.rows, classes, self.width, generator)
        self.rows_bias = torch.cat([self.rows_bias, self.rows_bias.new_zeros(classes)])

    def forward(self, features: Tensor) -> Tensor:
        """(B, D) -> (B, C)."""
        hidden = F.gelu(F.linear(features, self.into, self.into_bias))  # (B, 2 D)
        adapted = F.layer_norm(
            features + F.linear(hidden, self.back, self.back_bias), (self.width,), self.scale, self.shift, eps=1e-5
        )
        return F.linear(adapted, self.rows, self.rows_bias)

    @contextmanager
    def learning(self) -> Iterator[None]:
        """Within it the weights are parameters, so that an optimiser finds them."""
        names = [name for name, _ in self.named_buffers()]
        for name in names:
            setattr(self, name, nn.Parameter(getattr(self, name)))
        try:
            yield
        finally:
            for name in names:
                weight = getattr(self, name).detach()
                delattr(self, name)
                self.register_buffer(name, weight)


class HiDePromptOptions(alignment.ReplayOptions, PrefixOptions):
    """The prompts' mixture, the contrast, and what is remembered."""

    layers: Layers = Field(
        "first-5", description="the layers that are prompted: 'first-5', 'all', a list, or a range such as '0-8'"
    )
    replay: ReplayKind = Field("multi-centroid", description="what is remembered of each class")
    centroids: int = Field(10, ge=1, description="replay='multi-centroid': centroids per class")
    mixture: float = Field(0.01, ge=0, le=1, description="share of the earlier tasks' mean prompt in a task's prompt")
    contrast: float = Field(0.1, ge=0, description="weight of the contrastive regularisation; 0 switches it off")


@register("hide-prompt")
class HiDePrompt(SelectedPromptMethod):
    """A prompt per task, chosen by a classifier of its own; the head is aligned with remembered statistics."""

    summary = "a prompt per task, the task named by a classifier on un-prompted features (NeurIPS 2023)"
    options_class = HiDePromptOptions
    options: HiDePromptOptions

    def __init__(self, vit: ViT, options: HiDePromptOptions) -> None:
        super().__init__(vit, options)
        width = vit.config.width
        self.layers = prompted_layers(vit.config, options)
        self.prompts = GrowingRows(len(self.layers), 2, options.length // 2, width)  # P_0 ... P_{T-2}, p_{T-1}: (T, L, 2, n, D)
        self.statistics = alignment.build_statistics(options, width)  # of features under the own task's prompt
        self.plain_statistics = alignment.build_statistics(options, width)  # of un-prompted features
        self.identity = TaskIdentity(width)

    def begin_task(self, classes: int, generator: torch.Generator) -> None:
        """A new prompt, starting from the previous task's mixture, which is frozen."""
        super().begin_task(classes, generator)
        self.statistics.grow(classes)
        self.plain_statistics.grow(classes)
        self.identity.grow(classes, generator)
        if len(self.task_sizes) > 1:
            self.prompts.newest.data.copy_(self.mixed_prompt().clone())  # from p_t to P_t
        self.prompts.go_on(random_prompt(self.vit.config, self.options, generator).unsqueeze(0))

    # -- prompts -----------------------------------------------------------------------------------------------------------

    def mixed_prompt(self) -> Tensor:
        """P_t of the newest task, (L, 2, n, D)."""
        own, share = self.prompts.newest[0], self.options.mixture
        return (1 - share) * own + share * self.prompts.earlier.mean(dim=0) if len(self.prompts.earlier) else own

    def select_task(self, stem: Stem) -> Tensor:
        return self.task_of_class[self.identity(self.vit(stem)).argmax(dim=1)]

    def features_under(self, stem: Stem, tasks: Tensor) -> Tensor:
        prompts = torch.cat([self.prompts.earlier, self.mixed_prompt().unsqueeze(0)])  # (T, L, 2, n, D)
        features: Tensor = self.vit(stem, Prefix(prompts[tasks].movedim(0, 2), self.layers))  # rows (L, 2, B, n, D)
        return features

    # -- training ----------------------------------------------------------------------------------------------------------

    def loss(self, images: Tensor, labels: Tensor) -> dict[str, Tensor]:
        """Cross entropy among the task's classes, and contrast x contrastive regularisation."""
        features = self.vit(images, Prefix.shared(self.mixed_prompt(), self.layers, images.shape[0]))
        parts = {"ce": self.masked_cross_entropy(self.head(features), labels)}
        if self.options.contrast:
            centres, images_there = (part[: self.num_known_classes].flatten(0, 1) for part in self.statistics.centres())
            parts["contrast"] = self.options.contrast * contrastive_loss(features, centres, images_there > 0)
        return parts

    # -- after a task ------------------------------------------------------------------------------------------------------

    def consolidate(self, batches: Batches, generator: torch.Generator) -> None:
        """Both statistics of the classes at hand; from the second call on, alignment of the head and of the task identity."""
        known = int((self.statistics.count > 0).sum())
        self.observe(batches)
        if not known:
            return
        alignment.align_head(self.head, self.statistics, self.options, known, generator)
        if len(self.task_sizes) > 1:
            with self.identity.learning():
                alignment.align_head(self.identity, self.plain_statistics, self.options, known, generator)

    @torch.no_grad()
    def observe(self, batches: Batches) -> None:
        """Merge the images into the statistics, under their class's own prompt and without any."""
        prompted, plain = [], []
        for images, labels in batches:
            stem = self.vit.stem(images)
            prompted.append((self.features_under(stem, self.task_of_class[labels]), labels))
            plain.append((self.vit(stem), labels))
        self.statistics.observe_all(prompted)
        self.plain_statistics.observe_all(plain)


def contrastive_loss(features: Tensor, centres: Tensor, occupied: Tensor) -> Tensor:
    """Each row of [centres; features], (R, D) and (B, D), should be most similar to itself; centres not `occupied` are no rows.

    >>> one = torch.eye(2)[:1]
    >>> expected = torch.log1p(torch.exp(torch.tensor(-1 / 0.8)))
    >>> bool(torch.isclose(contrastive_loss(one, torch.eye(2)[1:], torch.tensor([True])), expected))
    True
    """
    rows = torch.cat([centres, features])
    counts = torch.cat([occupied, occupied.new_ones(features.shape[0])])  # (R + B,)
    similar = (rows @ rows.T / TEMPERATURE).masked_fill(~counts, float("-inf"))  # columns of empty centres
    losses = F.cross_entropy(similar, torch.arange(rows.shape[0], device=rows.device), reduction="none")
    return torch.where(counts, losses, 0).sum() / counts.sum()
