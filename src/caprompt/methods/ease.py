"""EASE: an ensemble of subspaces, one adapter per task (Zhou et al., CVPR 2024, arXiv:2403.12030).

Task t trains its own adapter A_t with a temporary cosine head (the proxy), then A_t is frozen.
Adapter j gives features f_j(x), its subspace. A class c of task i is represented by its mean
p_{c,j} in every subspace j:

    logit_c(x) = s ( cos(f_i(x), p_{c,i}) + alpha / (T - 1) sum_{j != i} cos(f_j(x), p_{c,j}) )

The un-adapted backbone may contribute as one more subspace (`raw_weight`).

No images of old classes are left when adapter j is trained, so their means in subspace j are
synthesized from the classes r seen there, weighted by their similarity in the old class's own
subspace i:

    p_{c,j} = sum_r softmax_r( cos(p_{c,i}, p_{r,i}) ) p_{r,j}

Shapes: B images, T tasks, S subspaces (T, or T + 1 with the un-adapted one first), C classes,
D width.
"""

from __future__ import annotations

from typing import ClassVar, cast

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor, nn

from caprompt.backbones.vit import Adaptation, ViT
from caprompt.methods.base import Batches
from caprompt.methods.components.adapters import Adapter, AdapterOptions
from caprompt.methods.components.heads import CosineHead, Head, LogitScaleOptions, ProxyOptions, cosines
from caprompt.methods.components.statistics import Statistics
from caprompt.methods.registry import register
from caprompt.methods.templates import DirectMethod

__all__ = ["Ease", "EaseOptions", "SubspaceHead", "synthesize_means"]


class EaseOptions(AdapterOptions, LogitScaleOptions, ProxyOptions):
    """Options of the weights of the subspaces."""

    alpha: float = Field(0.1, ge=0, description="total weight of the other tasks' subspaces; a class's own has weight 1")
    raw_weight: float = Field(0.0, ge=0, description="weight of the un-adapted backbone's subspace; 0 saves its pass")


class SubspaceHead(Head):
    """Class means in every subspace.

    A class not seen in a subspace has count 0 and a synthesized mean there.
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        self.width = width
        self.subspaces = nn.ModuleList()

    @property
    def statistics(self) -> list[Statistics]:
        """Class statistics of each subspace."""
        return cast("list[Statistics]", list(self.subspaces))

    def grow(self, num_classes: int, generator: torch.Generator) -> None:
        """Add classes to every subspace."""
        for subspace in self.statistics:
            subspace.grow(num_classes)

    def add_subspace(self, num_classes: int, device: torch.device) -> None:
        """Add a subspace in which no image has been seen."""
        subspace = Statistics(self.width)
        subspace.grow(num_classes)
        self.subspaces.append(subspace.to(device))

    def observe(self, batches: list[tuple[Tensor, Tensor]], own: Tensor) -> None:
        """Add features (S, B, D) and labels (B,), then synthesize the missing means again."""
        for index, subspace in enumerate(self.statistics):
            subspace.observe_batches((features[index], labels) for features, labels in batches)
        for subspace in self.statistics:
            self.fill_missing_means(subspace, own)

    def fill_missing_means(self, subspace: Statistics, own: Tensor) -> None:
        """Synthesize the means of classes never seen in this subspace.

        `own` (C,) is the index of each class's own subspace. A class seen here has been seen in all
        earlier subspaces too, since an image passes through every adapter that exists.
        """
        seen = subspace.count > 0  # (C,)
        for index in own[~seen].unique().tolist():
            own_means, missing = self.statistics[index].mean, ~seen & (own == index)
            subspace.mean[missing] = synthesize_means(own_means[missing], own_means[seen], subspace.mean[seen])

    def forward(self, features: Tensor, weights: Tensor) -> Tensor:
        """Sum weighted cosines over subspaces: features (S, B, D) and weights (S, C) -> (B, C)."""
        parts = [weight * cosines(part, each.mean) for weight, part, each in zip(weights, features, self.statistics, strict=True)]
        return torch.stack(parts).sum(dim=0)


@register("ease")
class Ease(DirectMethod):
    """One adapter, and thus one subspace, per task; classes are means in all subspaces."""

    summary = "an adapter per task, class means in every adapter's subspace, synthesized for old classes (CVPR 2024)"
    options_class = EaseOptions
    can_train_in_threads = True
    check_options: ClassVar = {**DirectMethod.check_options, "bottleneck": 4}
    check_variants: ClassVar = (
        {"alpha": 0.0},
        {"raw_weight": 1.0},
    )
    options: EaseOptions
    head: SubspaceHead

    def __init__(self, vit: ViT, options: EaseOptions) -> None:
        super().__init__(vit, options, SubspaceHead(vit.config.width))
        self.adapters = nn.ModuleList()
        self.proxy = self.make_proxy()
        if options.raw_weight:
            self.head.add_subspace(0, self.device)

    def make_proxy(self) -> CosineHead:
        """Return an empty head for the newest task's classes: it trains the adapter and is not used for prediction."""
        return CosineHead(self.vit.config.width, initial=self.options.proxy_scale).to(self.device)

    @property
    def trained_head(self) -> nn.Module:
        """The proxy head."""
        return self.proxy

    def begin_task(self, num_classes: int, generator: torch.Generator) -> None:
        """Add an adapter with its subspace and a new proxy head; earlier adapters are frozen."""
        super().begin_task(num_classes, generator)
        self.adapters.requires_grad_(False)
        adapter = Adapter(self.vit.config, self.options)
        adapter.reset_parameters(generator)
        self.adapters.append(adapter.to(self.device))
        self.head.add_subspace(self.num_classes, self.device)
        self.proxy = self.make_proxy()
        self.proxy.grow(num_classes, generator)

    def loss(self, images: Tensor, labels: Tensor) -> dict[str, Tensor]:
        """Return the cross entropy of the proxy among the task's classes, under its adapter."""
        features = self.vit(images, self.branches()[-1])
        return {"ce": F.cross_entropy(self.proxy(features), labels - self.num_known_classes)}

    def branches(self) -> list[Adaptation]:
        """Return every adapter as an adaptation for one pass."""
        return [cast(Adapter, adapter).branches() for adapter in self.adapters]

    @torch.no_grad()
    def features(self, images: Tensor) -> Tensor:
        """Compute the features of the images in every subspace: (S, B, D)."""
        stem = self.vit.stem(images)
        raw = [Adaptation()] if self.options.raw_weight else []
        return torch.stack([self.vit(stem, adaptation) for adaptation in [*raw, *self.branches()]])

    @property
    def own_subspace(self) -> Tensor:
        """Index of the subspace that each class's task added: (C,)."""
        return self.task_of_class + (len(self.head.subspaces) - len(self.adapters))

    def consolidate(self, batches: Batches, generator: torch.Generator) -> None:
        """Add the images to the means of all subspaces, and synthesize missing means."""
        self.head.observe([(self.features(images), labels) for images, labels in batches], self.own_subspace)

    def subspace_weights(self) -> Tensor:
        """Return the weight of each subspace for each class: (S, C)."""
        subspaces, others = len(self.head.subspaces), max(len(self.adapters) - 1, 1)
        own = F.one_hot(self.own_subspace, subspaces).T.float()  # (S, C)
        weights = own + (1 - own) * self.options.alpha / others
        if self.options.raw_weight:
            weights[0] = self.options.raw_weight
        return weights

    def logits(self, images: Tensor) -> Tensor:
        """Compute scaled cosines, weighted over the subspaces: (B, C)."""
        logits: Tensor = self.options.scale * self.head(self.features(images), self.subspace_weights())
        return logits

    @property
    def passes(self) -> int:
        """Number of subspaces: each takes one pass."""
        return len(self.head.subspaces)


def synthesize_means(old: Tensor, references: Tensor, targets: Tensor) -> Tensor:
    """Estimate the means (K, D) of K old classes in another subspace from R reference classes.

    `old` (K, D) and `references` (R, D) are means in the old classes' own subspace, `targets`
    (R, D) are the means of the references in the other one.

    >>> old, references = torch.tensor([[1.0, 0.0]]), torch.tensor([[0.0, 1.0], [0.0, -1.0]])
    >>> synthesize_means(old, references, torch.tensor([[2.0, 0.0], [4.0, 6.0]]))
    tensor([[3., 3.]])
    """
    return cosines(old, references).softmax(dim=1) @ targets
