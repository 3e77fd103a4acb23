"""MOS: model surgery by merging and switching adapters (Sun et al., AAAI 2025, arXiv:2412.09441).

Task t trains an adapter A_t, which starts as a copy of A_{t-1}. Before every step it is merged with
the mean of the earlier adapters, a moving average that bounds how far the adapters drift apart:

    A_t <- (1 - m) A_t + m mean(A_0 ... A_{t-1})

The loss is that of HiDe-Prompt: with M = [means of the earlier classes; features of the batch],

    L = CE(head f_t(x) among the task's classes) + contrast x CE(M M^T / 0.8, identity)

where f_t are the features under A_t. After a task the linear head is aligned on features sampled
from a Gaussian of every class, each under the adapter of its own task.

At prediction nobody knows the task. The first adapter with the nearest class mean, which no later
task changes, names one; from there the head names the next one until it agrees with the adapter:

    raw(x) = T cos(f_0(x), mean of f_0 over class c)        t_1 = task of argmax raw(x)
    z_k = head f_{t_k}(x)                                   t_{k+1} = task of argmax z_k
    p(x) = ( softmax z_K + softmax raw(x) ) / 2             K: t_{K+1} = t_K, at most `switches`

Logits are log p(x). Every image runs through the adapters that it needs, whatever its batch.

Differs from the public code, which also merges in every forward pass, once per block, in place:
there the adapters hardly leave the mean, and predictions change the stored adapters. Here they are
merged once per step, and predictions change nothing. See `docs/methods/mos.md`.

Shapes: B images, C classes, T tasks, D width.
"""

from __future__ import annotations

import math
from typing import ClassVar

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor

from caprompt.backbones.vit import Stem, ViT
from caprompt.methods.base import Batches, Method, MethodOutput
from caprompt.methods.components import alignment
from caprompt.methods.components.adapters import AdapterOptions
from caprompt.methods.components.contrast import CONTRAST, contrastive_loss
from caprompt.methods.components.heads import cosines
from caprompt.methods.components.statistics import Statistics
from caprompt.methods.components.task_adapters import TaskAdapters
from caprompt.methods.options import Options
from caprompt.methods.registry import register

__all__ = ["Mos", "MosOptions"]


class MosOptions(alignment.ReplayOptions, AdapterOptions):
    """Options of the merging, the contrastive loss and the choice of adapters."""

    bottleneck: int = Field(16, ge=1, description="bottleneck width of the adapter")
    merge: float = Field(0.1, ge=0, lt=1, description="m: weight of the earlier adapters' mean, merged in before every step")
    contrast: float = Field(0.1, ge=0, description="weight of the contrastive loss; 0 disables it")
    switches: int = Field(4, ge=1, description="most adapters that an image is predicted with")
    ensemble: bool = Field(True, description="average the prediction with that of the first adapter and the nearest class mean")
    align_epochs: int = Field(30, ge=0, description="epochs of classifier alignment after each task; 0 for none")
    align_rate: float = Field(0.005, gt=0, description="learning rate of classifier alignment (SGD, momentum 0.9, cosine schedule)")

    at_prediction: ClassVar[frozenset[str]] = Options.at_prediction | {"switches", "ensemble"}


@register("mos")
class Mos(Method):
    """An adapter per task; the class that one adapter predicts names the next adapter to try."""

    summary = "an adapter per task, merged by moving average; predictions switch adapters until they agree (AAAI 2025)"
    options_class = MosOptions
    check_options: ClassVar = {**Method.check_options, "bottleneck": 4, "align_epochs": 3}
    check_variants: ClassVar = (
        {"switches": 1},
        {"ensemble": False},
        {"merge": 0.0, "contrast": 0.0},
    )
    options: MosOptions

    def __init__(self, vit: ViT, options: MosOptions) -> None:
        super().__init__(vit, options)
        self.adapters = TaskAdapters(vit.config, options)
        self.statistics = alignment.build_statistics(options, vit.config.width)  # under the own task's adapter
        self.prototypes = Statistics(vit.config.width)  # under the first adapter

    @property
    def can_capture_predict(self) -> bool:
        """False: images differ in the number of passes."""
        return False

    def begin_task(self, num_classes: int, generator: torch.Generator) -> None:
        """Add head rows, statistics and an adapter; the earlier adapters are frozen."""
        super().begin_task(num_classes, generator)
        self.adapters.begin_task(generator)
        self.statistics.grow(num_classes)
        self.prototypes.grow(num_classes)

    # -- training ----------------------------------------------------------------------------------

    def explain_indivisible(self) -> str | None:
        """Return why not every image has a loss of its own."""
        return CONTRAST if self.options.contrast else super().explain_indivisible()

    def loss(self, images: Tensor, labels: Tensor) -> dict[str, Tensor]:
        """Merge the adapter, then return the cross entropy and the weighted contrastive loss."""
        self.merge_adapter()
        features = self.vit(images, self.adapters.newest_branches())
        parts = {"ce": self.masked_cross_entropy(self.head(features), labels)}
        if self.options.contrast:
            centers, counts = (part[: self.num_known_classes].flatten(0, 1) for part in self.statistics.centers())
            parts["contrast"] = self.options.contrast * contrastive_loss(features, centers, counts > 0)
        return parts

    @torch.no_grad()
    def merge_adapter(self) -> None:
        """Move the newest adapter towards the mean of the earlier ones, if there are any."""
        if len(self.task_sizes) > 1:
            for rows in self.adapters.rows:
                rows.newest.lerp_(rows.earlier.mean(dim=0, keepdim=True), self.options.merge)

    # -- after a task ------------------------------------------------------------------------------

    def consolidate(self, batches: Batches, generator: torch.Generator) -> None:
        """Add the images to the statistics; from the second call on, align the head."""
        has_statistics = bool((self.statistics.count > 0).any())
        self.update_statistics(batches)
        if has_statistics:
            alignment.align_head(self.head, self.statistics, self.options, self.num_classes, generator)

    @torch.no_grad()
    def update_statistics(self, batches: Batches) -> None:
        """Add the images to both statistics: with the adapter of their task and with the first one."""
        own, first = [], []
        for images, labels in batches:
            stem = self.vit.stem(images)
            own.append((self.vit(stem, self.adapters.select(self.task_of_class[labels])), labels))
            first.append((self.extract_first_features(stem), labels))
        self.statistics.observe_batches(own)
        self.prototypes.observe_batches(first)

    # -- prediction --------------------------------------------------------------------------------

    def extract_first_features(self, stem: Stem) -> Tensor:
        """Compute the features under the first task's adapter: (B, D)."""
        features: Tensor = self.vit(stem, self.adapters.branches()[0])
        return features

    @torch.no_grad()
    def predict(self, images: Tensor, true_tasks: Tensor | None = None) -> MethodOutput:
        """Predict with the first adapter, then switch adapters until prediction and adapter agree.

        With `true_tasks` (B,), the adapter of each image's true task is used without switching.
        """
        stem = self.vit.stem(images)
        first = self.extract_first_features(stem)
        raw = len(self.task_sizes) * cosines(first, self.prototypes.mean)  # (B, C)
        tasks = self.task_of_class[raw.argmax(dim=1)] if true_tasks is None else true_tasks
        switches = self.options.switches if true_tasks is None else 1
        logits, tasks, passes = self.refine(stem, first, tasks, switches)
        if self.options.ensemble:
            logits = torch.logaddexp(logits.log_softmax(dim=1), raw.log_softmax(dim=1)) - math.log(2)
        weights = F.one_hot(tasks, len(self.task_sizes)).to(logits)  # (B, T)
        return MethodOutput(logits, weights, passes)

    def refine(self, stem: Stem, first: Tensor, tasks: Tensor, switches: int) -> tuple[Tensor, Tensor, Tensor]:
        """Switch adapters, starting with those of `tasks` (B,), until each image names its own.

        `first` (B, D) are the features under the first adapter. Return the logits (B, C), the
        adapter that each image's logits are from (B,), and its number of passes (B,).
        """
        first_logits = self.head(first)
        logits, tasks, passes = first_logits.clone(), tasks.clone(), torch.ones_like(tasks)
        active = torch.arange(len(tasks), device=tasks.device)
        for remaining in reversed(range(switches)):
            logits[active] = first_logits[active]
            passed = active[tasks[active] > 0]  # the first adapter's features are known already
            if len(passed):
                logits[passed] = self.head(self.vit(stem.select(passed), self.adapters.select(tasks[passed])))
                passes[passed] += 1
            named = self.task_of_class[logits[active].argmax(dim=1)]
            is_other = named != tasks[active]
            active, named = active[is_other], named[is_other]
            if not remaining or not len(active):
                break
            tasks[active] = named
        return logits, tasks, passes
