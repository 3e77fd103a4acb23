"""EASE: an ensemble of subspaces, one adapter per task (Zhou et al., CVPR 2024, arXiv:2403.12030).

Task t trains its own adapter A_t, with a cosine classifier that is thrown away afterwards, and never touches it again. Adapter j
gives features f_j(x), its subspace. A class c of task i is known by its mean p_{c,j} in every subspace j,

    logit_c(x) = s ( cos(f_i(x), p_{c,i}) + alpha / (T - 1) sum_{j != i} cos(f_j(x), p_{c,j}) ),

and the un-adapted backbone may vote as one more subspace (`raw_weight`).

There are no images left of old classes when adapter j is trained, so their means there are synthesised from the classes r that
have been seen in j, weighted by how alike they are in the old class's own subspace i:

    p_{c,j} = sum_r softmax_r( cos(p_{c,i}, p_{r,i}) ) p_{r,j}.

Shapes: B images, T tasks, S subspaces (T, or T + 1 with the un-adapted one in front), C classes, D width.
"""

from __future__ import annotations

from typing import cast

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor, nn

from caprompt.backbones.vit import Adaptation, ViT
from caprompt.methods.base import Batches
from caprompt.methods.components.adapters import Adapter, AdapterOptions
from caprompt.methods.components.heads import CosineHead, Head, ScoreOptions, cosines
from caprompt.methods.components.statistics import Statistics
from caprompt.methods.registry import register
from caprompt.methods.templates import DirectMethod

__all__ = ["Ease", "EaseOptions", "SubspaceHead", "synthesised"]


class EaseOptions(AdapterOptions, ScoreOptions):
    """How the subspaces vote."""

    alpha: float = Field(0.1, ge=0, description="weight of all other tasks' subspaces together, beside a class's own")
    raw_weight: float = Field(0.0, ge=0, description="weight of the un-adapted backbone's subspace; 0 saves its pass")


class SubspaceHead(Head):
    """Class means in every subspace. Where no image of a class has been seen in one, its count is 0 and its mean synthesised."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.width = width
        self.subspaces = nn.ModuleList()

    @property
    def means(self) -> list[Statistics]:
        """What is known of all classes in each subspace."""
        return cast("list[Statistics]", list(self.subspaces))

    def grow(self, classes: int, generator: torch.Generator) -> None:
        """Room for further classes in every subspace."""
        for subspace in self.means:
            subspace.grow(classes)

    def add_subspace(self, classes: int, device: torch.device) -> None:
        """A new subspace, in which nothing has been seen yet."""
        subspace = Statistics(self.width)
        subspace.grow(classes)
        self.subspaces.append(subspace.to(device))

    def observe(self, batches: list[tuple[Tensor, Tensor]], own: Tensor) -> None:
        """Take in features (S, B, D) and classes (B,) of all images of a call; then synthesise what is lacking anew."""
        for number, subspace in enumerate(self.means):
            subspace.observe_all((features[number], labels) for features, labels in batches)
        for subspace in self.means:
            self.synthesise(subspace, own)

    def synthesise(self, subspace: Statistics, own: Tensor) -> None:
        """Means of the classes never seen in this subspace; `own` (C,) is the number of each class's own subspace.

        A class seen here has been seen in all earlier subspaces too: an image goes through every adapter that there is.
        """
        seen = subspace.count > 0  # (C,)
        for number in own[~seen].unique().tolist():
            there, lacking = self.means[number].mean, ~seen & (own == number)
            subspace.mean[lacking] = synthesised(there[lacking], there[seen], subspace.mean[seen])

    def forward(self, features: Tensor, weights: Tensor) -> Tensor:
        """Weighted cosines summed over the subspaces: features (S, B, D) and weights (S, C) -> (B, C)."""
        parts = [weight * cosines(part, each.mean) for weight, part, each in zip(weights, features, self.means, strict=True)]
        return torch.stack(parts).sum(dim=0)


@register("ease")
class Ease(DirectMethod):
    """An adapter and thereby a subspace per task; classes are means in all of them."""

    summary = "an adapter per task, class means in every adapter's subspace, synthesised for old classes (CVPR 2024)"
    options_class = EaseOptions
    options: EaseOptions
    head: SubspaceHead

    def __init__(self, vit: ViT, options: EaseOptions) -> None:
        super().__init__(vit, options, SubspaceHead(vit.config.width))
        self.adapters = nn.ModuleList()
        self.proxy = CosineHead(vit.config.width)  # of the newest task's classes; it teaches the adapter and never answers
        if options.raw_weight:
            self.head.add_subspace(0, self.device)

    @property
    def trained_head(self) -> nn.Module:
        """The proxy."""
        return self.proxy

    def begin_task(self, classes: int, generator: torch.Generator) -> None:
        """A new adapter with its subspace and its proxy; earlier adapters are frozen for good."""
        super().begin_task(classes, generator)
        self.adapters.requires_grad_(False)
        adapter = Adapter(self.vit.config, self.options)
        adapter.restart(generator)
        self.adapters.append(adapter.to(self.device))
        self.head.add_subspace(self.num_classes, self.device)
        self.proxy = CosineHead(self.vit.config.width).to(self.device)
        self.proxy.grow(classes, generator)

    def loss(self, images: Tensor, labels: Tensor) -> dict[str, Tensor]:
        """Cross entropy of the proxy among the task's classes, under the task's own adapter."""
        features = self.vit(images, self.branches()[-1])
        return {"ce": F.cross_entropy(self.proxy(features), labels - self.num_known_classes)}

    def branches(self) -> list[Adaptation]:
        """Every adapter, for one pass each."""
        return [cast(Adapter, adapter).branches() for adapter in self.adapters]

    @torch.no_grad()
    def features(self, images: Tensor) -> Tensor:
        """Every subspace's view of the images: (S, B, D)."""
        stem = self.vit.stem(images)
        raw = [Adaptation()] if self.options.raw_weight else []
        return torch.stack([self.vit(stem, adaptation) for adaptation in [*raw, *self.branches()]])

    @property
    def own_subspace(self) -> Tensor:
        """The number of the subspace that each class's own task brought: (C,)."""
        return self.task_of_class + (len(self.head.subspaces) - len(self.adapters))

    def consolidate(self, batches: Batches, generator: torch.Generator) -> None:
        """The images' means in all subspaces, and the old classes' synthesised from them."""
        self.head.observe([(self.features(images), labels) for images, labels in batches], self.own_subspace)

    def weights(self) -> Tensor:
        """How much each subspace says on each class: (S, C)."""
        subspaces, others = len(self.head.subspaces), max(len(self.adapters) - 1, 1)
        own = F.one_hot(self.own_subspace, subspaces).T.float()  # (S, C)
        weights = own + (1 - own) * self.options.alpha / others
        if self.options.raw_weight:
            weights[0] = self.options.raw_weight
        return weights

    def logits(self, images: Tensor) -> Tensor:
        """Scaled cosines, every subspace weighed: (B, C)."""
        logits: Tensor = self.options.scale * self.head(self.features(images), self.weights())
        return logits

    @property
    def passes(self) -> int:
        """One per subspace."""
        return len(self.head.subspaces)


def synthesised(old: Tensor, references: Tensor, targets: Tensor) -> Tensor:
    """Means (K, D) of K old classes in another subspace, from those of R references in their own subspace and in the other one.

    >>> old, references = torch.tensor([[1.0, 0.0]]), torch.tensor([[0.0, 1.0], [0.0, -1.0]])
    >>> synthesised(old, references, torch.tensor([[2.0, 0.0], [4.0, 6.0]]))
    tensor([[3., 3.]])
    """
    return cosines(old, references).softmax(dim=1) @ targets
