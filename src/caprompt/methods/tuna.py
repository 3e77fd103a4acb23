"""TUNA: task-specific and universal adapters (Wang et al., ICCV 2025, arXiv:2508.08165).

Task t trains an adapter A_t, which starts as a copy of A_{t-1}, with scaled cosines among the
classes of the task and a penalty on the overlap of its up-projection U_t with the earlier ones:

    L = -log softmax_y( s (cos(f_t(x), w_c) - m [c = y]) )
        + overlap exp(-(t + 1)) sum_{i < t} mean_l | mean_jk cos(row j of U_t^l, row k of U_i^l) |

with t counted from 0 and l over blocks. The mean over all pairs of rows is the inner product of the
two means of unit rows, so no D x D matrix is formed.

After a task all adapters are fused, weight by weight, into a universal one. Its sign is that of the
mean weight, its magnitude the largest among the adapters whose weight has that sign:

    sigma = sign(mean_t A_t),        A = sigma max_t ( max(0, sigma A_t) )

and the head is aligned on features sampled from a Gaussian of every class, each under the adapter
of its own task. The mean of a class of task i among T is multiplied by 0.9 + 0.1 i / T (`shrink`).

At prediction the adapter with the lowest entropy is selected for each image:

    t*(x) = argmin_t H(softmax z_t(x)),        p(x) = ( softmax z_{t*}(x) + softmax z_A(x) ) / 2

where z_t and z_A are the logits under A_t and under the universal adapter. Logits are log p(x).

Differs from the public code, where earlier adapters stay in the optimizer, so that penalty and
weight decay change them; here they are frozen. There a negative task size makes `shrink` affect
later classes more than earlier ones; here it does what was meant. See `docs/methods/tuna.md`.

Shapes: B images, C classes, T tasks, L blocks, D width, r bottleneck.
"""

from __future__ import annotations

import math
from typing import ClassVar

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor

from caprompt.backbones.vit import ViT
from caprompt.methods.base import Batches, Method, MethodOutput
from caprompt.methods.components import alignment
from caprompt.methods.components.adapters import AdapterOptions
from caprompt.methods.components.heads import CosineHead
from caprompt.methods.components.task_adapters import AdapterWeights, SharedBranches, TaskAdapters
from caprompt.methods.registry import register

__all__ = ["Tuna", "TunaOptions", "compute_entropies", "compute_overlap", "fuse_weights"]


class TunaOptions(alignment.ReplayOptions, AdapterOptions):
    """Options of the loss and of the alignment."""

    bottleneck: int = Field(16, ge=1, description="bottleneck width of the adapter")
    scale: float = Field(20.0, gt=0, description="s: factor from cosines to logits")
    margin: float = Field(0.0, ge=0, description="m: margin subtracted from the cosine of the true class in training")
    overlap: float = Field(
        0.001, ge=0, description="weight of the penalty on overlapping up-projections, before exp(-number of tasks); 0 disables it"
    )
    shrink: bool = Field(True, description="shrink the class means of earlier tasks in the alignment, by up to a tenth")
    align_epochs: int = Field(30, ge=0, description="epochs of classifier alignment after each task; 0 for none")
    align_rate: float = Field(0.005, gt=0, description="learning rate of classifier alignment (SGD, momentum 0.9, cosine schedule)")


@register("tuna")
class Tuna(Method):
    """An adapter per task and one fused from all; both predict, the former chosen by its entropy."""

    summary = "an adapter per task, chosen by entropy, and a universal one fused from all (ICCV 2025)"
    options_class = TunaOptions
    can_train_in_threads = True
    check_options: ClassVar = {**Method.check_options, "bottleneck": 4, "align_epochs": 3}
    check_variants: ClassVar = ({"overlap": 0.0, "shrink": False}, {"margin": 0.2})
    options: TunaOptions
    head: CosineHead

    def __init__(self, vit: ViT, options: TunaOptions) -> None:
        super().__init__(vit, options, CosineHead(vit.config.width, options.scale))
        self.adapters = TaskAdapters(vit.config, options)
        self.statistics = alignment.build_statistics(options, vit.config.width)  # under the own task's adapter

    @property
    def learning_state(self) -> tuple[str, ...]:
        """The class statistics."""
        return ("statistics",)

    def begin_task(self, num_classes: int, generator: torch.Generator) -> None:
        """Add head rows, statistics and an adapter; the earlier adapters are frozen."""
        super().begin_task(num_classes, generator)
        self.adapters.begin_task(generator)
        self.statistics.grow(num_classes)

    # -- training ----------------------------------------------------------------------------------

    def loss(self, images: Tensor, labels: Tensor) -> dict[str, Tensor]:
        """Return the cross entropy of scaled cosines with a margin, and the weighted overlap."""
        logits = self.head(self.vit(images, self.adapters.newest_branches()))
        if self.options.margin:
            logits = logits - self.options.scale * self.options.margin * F.one_hot(labels, self.num_classes)
        parts = {"ce": self.masked_cross_entropy(logits, labels)}
        if self.options.overlap and len(self.task_sizes) > 1:
            weight = self.options.overlap * math.exp(-len(self.task_sizes))
            parts["overlap"] = weight * compute_overlap(self.adapters.up.newest[0], self.adapters.up.earlier)
        return parts

    # -- after a task ------------------------------------------------------------------------------

    def consolidate(self, batches: Batches, generator: torch.Generator) -> None:
        """Add the images to the statistics; from the second call on, align the head."""
        has_statistics = bool((self.statistics.count > 0).any())
        self.update_statistics(batches)
        if has_statistics:
            sample = alignment.make_shrunk_sampler(self.statistics, self.task_of_class) if self.options.shrink else None
            alignment.align_head(self.head, self.statistics, self.options, self.num_classes, generator, sample)

    @torch.no_grad()
    def update_statistics(self, batches: Batches) -> None:
        """Add the features of the images, each under the adapter of its task."""
        self.statistics.observe_batches(
            (self.vit(images, self.adapters.select(self.task_of_class[labels])), labels) for images, labels in batches
        )

    # -- prediction --------------------------------------------------------------------------------

    def universal_branches(self) -> SharedBranches:
        """Return the universal adapter as an adaptation for one pass."""
        return self.adapters.share(AdapterWeights(*(fuse_weights(weights) for weights in self.adapters.weights())))

    @torch.no_grad()
    def predict(self, images: Tensor, true_tasks: Tensor | None = None) -> MethodOutput:
        """Predict with the adapter of the lowest entropy, or of the true task, and the universal one."""
        stem = self.vit.stem(images)
        logits = torch.stack([self.head(self.vit(stem, branches)) for branches in self.adapters.branches()])  # (T, B, C)
        tasks = compute_entropies(logits).argmin(dim=0) if true_tasks is None else true_tasks  # (B,)
        chosen = logits.gather(0, tasks[None, :, None].expand(1, -1, logits.shape[2]))[0]  # (B, C)
        if len(self.task_sizes) > 1:  # the universal adapter of one task is its own
            universal = self.head(self.vit(stem, self.universal_branches()))
            chosen = torch.logaddexp(chosen.log_softmax(dim=1), universal.log_softmax(dim=1)) - math.log(2)
        weights = F.one_hot(tasks, len(self.task_sizes)).to(chosen)  # (B, T)
        return MethodOutput(chosen, weights, torch.full_like(tasks, self.passes))

    @property
    def passes(self) -> int:
        """Number of forward passes of a prediction: one for each adapter."""
        return len(self.task_sizes) + (len(self.task_sizes) > 1)


def compute_overlap(newest: Tensor, earlier: Tensor) -> Tensor:
    """Sum |mean cosine of rows|, averaged over blocks, of one up-projection with each earlier one.

    `newest` is (L, D, r), `earlier` (T - 1, L, D, r).

    >>> one = torch.tensor([[[1.0, 0.0], [1.0, 0.0]]])
    >>> compute_overlap(one, one.flip(2).unsqueeze(0)), compute_overlap(one, 3 * one.unsqueeze(0))
    (tensor(0.), tensor(1.))
    """
    means, earlier_means = (F.normalize(rows, dim=-1).mean(dim=-2) for rows in (newest, earlier))  # (L, r), (T - 1, L, r)
    return (means * earlier_means).sum(dim=-1).abs().mean(dim=1).sum()


def fuse_weights(weights: Tensor) -> Tensor:
    """Fuse the weights of T adapters: (T, ...) -> (...), by the mean's sign and the largest magnitude.

    >>> fuse_weights(torch.tensor([[2.0, -1.0], [-0.5, -4.0]]))
    tensor([ 2., -4.])
    """
    sign = 2 * (weights.mean(dim=0) > 0).to(weights) - 1
    return sign * (sign * weights).clamp_min(0).amax(dim=0)


def compute_entropies(logits: Tensor) -> Tensor:
    """Return the entropy of the softmax of each row: (..., C) -> (...).

    >>> compute_entropies(torch.zeros(1, 4))  # log 4
    tensor([1.3863])
    """
    logs = logits.log_softmax(dim=-1)
    return -(logs.exp() * logs).sum(dim=-1)
