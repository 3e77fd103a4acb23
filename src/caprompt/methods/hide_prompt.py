"""HiDe-Prompt: hierarchical decomposition prompt (Wang et al., NeurIPS 2023, arXiv:2310.07234).

Class-incremental learning is decomposed into three problems, each with its own learner:

    within a task    every task t has its own prefix prompt,
                     P_t = (1 - m) p_t + m mean(P_0 ... P_{t-1})
    task identity    a classifier on un-prompted features (`TaskIdentity`) predicts a class, whose
                     task selects the prompt
    across tasks     the head is aligned with features sampled from the statistics of all classes

In training, the features of a task are also pushed apart from each other and from the earlier
classes. With M = [centers of the earlier classes; features of the batch], every row should be most
similar to itself:

    L = CE(head f(x, P_t) among the task's classes) + contrast x CE(M M^T / 0.8, identity)

Both classifiers that span tasks are trained in `consolidate`, from two sets of statistics: features
under the own task's prompt for the head, un-prompted features for the task identity.
A training step therefore needs only one pass.

The task identity classifier (TII in the paper) is

    adapted(z) = norm(z + W2 gelu(W1 z + b1) + b2),     logits = V adapted(z) + v

with one logit per class; the task of an image is that of its most likely class.
It is trained between tasks only, from stored class statistics. Its weights are therefore buffers:
no training step updates them, but they are saved with the model.

Shapes: B images, T tasks, C classes, L prompted layers, n rows of keys (and as many of values),
D width.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import ClassVar

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor, nn

from caprompt.backbones.vit import Stem, ViT
from caprompt.methods.base import Batches
from caprompt.methods.components import alignment
from caprompt.methods.components.alignment import ReplayKind
from caprompt.methods.components.contrast import CONTRAST, contrastive_loss
from caprompt.methods.components.growing_rows import GrowingRows
from caprompt.methods.components.heads import append_rows, linear_init
from caprompt.methods.components.prefix import Layers, Prefix, PrefixOptions, draw_prompt, resolve_layers
from caprompt.methods.registry import register
from caprompt.methods.templates import SelectedPromptMethod

__all__ = ["HiDePrompt", "HiDePromptOptions", "TaskIdentity"]


class TaskIdentity(nn.Module):
    """Classifier that grows with the classes; its weights are trainable only inside `trainable`."""

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
    into_bias: Tensor  # b1, (2 D,)
    back: Tensor  # W2, (D, 2 D)
    back_bias: Tensor  # b2, (D,)
    scale: Tensor  # of the norm, (D,)
    shift: Tensor  # of the norm, (D,)
    rows: Tensor  # V, (C, D)
    rows_bias: Tensor  # v, (C,)

    def grow(self, num_classes: int, generator: torch.Generator) -> None:
        """Add classes; the first ones initialize the hidden layer. Biases start at zero."""
        if not len(self.rows):
            for weight in (self.into, self.back):
                weight.copy_(linear_init(weight.shape, weight.shape[1], generator))
        self.rows = append_rows(self.rows, num_classes, self.width, generator)
        self.rows_bias = torch.cat([self.rows_bias, self.rows_bias.new_zeros(num_classes)])

    def forward(self, features: Tensor) -> Tensor:
        """Compute logits: (B, D) -> (B, C)."""
        hidden = F.gelu(F.linear(features, self.into, self.into_bias))  # (B, 2 D)
        adapted = F.layer_norm(
            features + F.linear(hidden, self.back, self.back_bias), (self.width,), self.scale, self.shift, eps=1e-5
        )
        return F.linear(adapted, self.rows, self.rows_bias)

    @contextmanager
    def trainable(self) -> Iterator[None]:
        """Make the weights parameters within the context, so that an optimizer can train them."""
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
    """Options of the prompt mixture, the contrastive loss and the class statistics."""

    layers: Layers = Field("first-5", description="layers with a prompt: 'first-5', 'all', a list, or a range such as '0-8'")
    replay: ReplayKind = Field("multi-centroid", description="statistics stored per class")
    centroids: int = Field(10, ge=1, description="replay='multi-centroid': centroids per class")
    mixture: float = Field(0.01, ge=0, le=1, description="m: weight of the earlier tasks' mean prompt in a task's prompt")
    contrast: float = Field(0.1, ge=0, description="weight of the contrastive loss; 0 disables it")


@register("hide-prompt")
class HiDePrompt(SelectedPromptMethod):
    """One prompt per task, selected by a classifier; the head is aligned with class statistics."""

    summary = "a prompt per task, the task predicted by a classifier on un-prompted features (NeurIPS 2023)"
    options_class = HiDePromptOptions
    can_train_in_threads = True
    check_options: ClassVar = {**SelectedPromptMethod.check_options, "length": 4, "align_epochs": 3}
    check_variants: ClassVar = ({"replay": "covariance"},)
    options: HiDePromptOptions

    def __init__(self, vit: ViT, options: HiDePromptOptions) -> None:
        super().__init__(vit, options)
        width = vit.config.width
        self.layers = resolve_layers(vit.config, options)
        self.prompts = GrowingRows(len(self.layers), 2, options.length // 2, width)  # P_0 ... P_{T-2}, p_{T-1}: (T, L, 2, n, D)
        self.statistics = alignment.build_statistics(options, width)  # of features under the own task's prompt
        self.plain_statistics = alignment.build_statistics(options, width)  # of un-prompted features
        self.identity = TaskIdentity(width)

    @property
    def learning_state(self) -> tuple[str, ...]:
        """Both class statistics."""
        return ("statistics", "plain_statistics")

    def begin_task(self, num_classes: int, generator: torch.Generator) -> None:
        """Add a prompt, initialized with the previous task's mixture, which is frozen."""
        super().begin_task(num_classes, generator)
        self.statistics.grow(num_classes)
        self.plain_statistics.grow(num_classes)
        self.identity.grow(num_classes, generator)
        if len(self.task_sizes) > 1:
            self.prompts.newest.data.copy_(self.mixed_prompt().clone())  # from p_t to P_t
        self.prompts.append_from_newest(draw_prompt(self.vit.config, self.options, generator).unsqueeze(0))

    # -- prompts -----------------------------------------------------------------------------------

    def mixed_prompt(self) -> Tensor:
        """Return P_t of the newest task: (L, 2, n, D)."""
        own, share = self.prompts.newest[0], self.options.mixture
        return (1 - share) * own + share * self.prompts.earlier.mean(dim=0) if len(self.prompts.earlier) else own

    def select_task(self, stem: Stem) -> Tensor:
        return self.task_of_class[self.identity(self.vit(stem)).argmax(dim=1)]

    def extract_features(self, stem: Stem, tasks: Tensor) -> Tensor:
        prompts = torch.cat([self.prompts.earlier, self.mixed_prompt().unsqueeze(0)])  # (T, L, 2, n, D)
        features: Tensor = self.vit(stem, Prefix(prompts[tasks].movedim(0, 2), self.layers))  # rows (L, 2, B, n, D)
        return features

    # -- training ----------------------------------------------------------------------------------

    def explain_indivisible(self) -> str | None:
        """Return why not every image has a loss of its own."""
        return CONTRAST if self.options.contrast else super().explain_indivisible()

    def loss(self, images: Tensor, labels: Tensor) -> dict[str, Tensor]:
        """Return the cross entropy among the task's classes and the weighted contrastive loss."""
        features = self.vit(images, Prefix.shared(self.mixed_prompt(), self.layers, images.shape[0]))
        parts = {"ce": self.masked_cross_entropy(self.head(features), labels)}
        if self.options.contrast:
            centers, counts = (part[: self.num_known_classes].flatten(0, 1) for part in self.statistics.centers())
            parts["contrast"] = self.options.contrast * contrastive_loss(features, centers, counts > 0)
        return parts

    # -- after a task ------------------------------------------------------------------------------

    def consolidate(self, batches: Batches, generator: torch.Generator) -> None:
        """Update both statistics; from the second call on, align both classifiers."""
        num_old = int((self.statistics.count > 0).sum())
        self.update_statistics(batches)
        if not num_old:
            return
        alignment.align_head(self.head, self.statistics, self.options, num_old, generator)
        if len(self.task_sizes) > 1:
            with self.identity.trainable():
                alignment.align_head(self.identity, self.plain_statistics, self.options, num_old, generator)

    @torch.no_grad()
    def update_statistics(self, batches: Batches) -> None:
        """Add the images to the statistics, with the prompt of their task and without prompts."""
        prompted, plain = [], []
        for images, labels in batches:
            stem = self.vit.stem(images)
            prompted.append((self.extract_features(stem, self.task_of_class[labels]), labels))
            plain.append((self.vit(stem), labels))
        self.statistics.observe_batches(prompted)
        self.plain_statistics.observe_batches(plain)
