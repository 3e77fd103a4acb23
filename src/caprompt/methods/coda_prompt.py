"""CODA-Prompt: decomposed attention-based prompting (Smith et al., CVPR 2023, arXiv:2211.13218).

The prefix prompt of an image is a weighted sum of components p_m.
Each component has a key K_m and an attention vector A_m, which weights the features of the query q
(the class-token feature from a pass without prompts) before it is compared with the key.
Components, keys and attention vectors exist once per prompted layer:

    alpha_m(x) = cos(q(x) * A_m, K_m)          phi(x) = sum_m alpha_m(x) p_m

There is no hard selection, so the cross entropy trains everything end to end.
A task adds `components` components, initialized orthogonal to each other and to all earlier ones.
Those of earlier tasks are frozen but still contribute. An optional penalty keeps them orthogonal:

    ort(X) = mean((X X^T - I)^2)
    loss = CE among the task's classes + orthogonality * sum_layers [ort(K) + ort(A) + ort(p)]

Shapes: B images, M components so far, L prompted layers, n rows of keys (and as many of values),
C classes, D width.
"""

from __future__ import annotations

from typing import ClassVar

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor

from caprompt.backbones.vit import ViT
from caprompt.methods.components.growing_rows import GrowingRows, draw_orthonormal_rows
from caprompt.methods.components.prefix import Prefix
from caprompt.methods.options import PromptOptions, Schedule
from caprompt.methods.registry import register
from caprompt.methods.templates import OwnTaskMethod

__all__ = ["CODAPrompt", "CODAPromptOptions", "attended_cosine_similarity", "orthogonality_penalty"]

EPSILON = 1e-12  # avoids a division by zero for a zero query


class CODAPromptOptions(PromptOptions):
    """Options of the components and of the prompted layers."""

    schedule: Schedule = Field("quarter-cosine", description="learning rate schedule within a task; by default as in its code")
    components: int = Field(10, ge=1, description="components that each task adds")
    length: int = Field(8, ge=2, multiple_of=2, description="prompt rows per layer, keys and values together")
    prompted: int = Field(5, ge=1, description="number of prompted layers, from the first; all layers of a shallower backbone")
    orthogonality: float = Field(
        0.0, ge=0, description="weight of the orthogonality penalty on components, keys and attention; 0: none"
    )


@register("coda-prompt")
class CODAPrompt(OwnTaskMethod):
    """Prompts composed of components, weighted by attended cosine similarities."""

    summary = "prompts composed of components by attention, some added per task (CVPR 2023)"
    options_class = CODAPromptOptions
    can_train_in_threads = True
    check_options: ClassVar = {**OwnTaskMethod.check_options, "length": 4}
    check_variants: ClassVar = ({"orthogonality": 0.1},)
    options: CODAPromptOptions

    def __init__(self, vit: ViT, options: CODAPromptOptions) -> None:
        super().__init__(vit, options)
        width = vit.config.width
        self.layers = range(min(options.prompted, vit.config.depth))
        self.components = GrowingRows(len(self.layers), 2, options.length // 2, width)  # (M, L, 2, n, D)
        self.keys = GrowingRows(len(self.layers), width)  # (M, L, D)
        self.attention = GrowingRows(len(self.layers), width)  # (M, L, D)

    def begin_task(self, num_classes: int, generator: torch.Generator) -> None:
        """Add components with keys and attention, orthogonal to all earlier ones per layer."""
        super().begin_task(num_classes, generator)
        for rows in (self.components, self.keys, self.attention):
            earlier = rows().flatten(2)  # (M, L, F)
            new = [draw_orthonormal_rows(self.options.components, earlier[:, slot], generator) for slot in range(len(self.layers))]
            rows.append(torch.stack(new, dim=1).unflatten(2, rows.newest.shape[2:]))  # (components, L, ...)

    def logits(self, images: Tensor) -> Tensor:
        """Compute logits (B, C): one pass for the query, one with the composed prompts."""
        stem = self.vit.stem(images)
        weights = attended_cosine_similarity(self.vit(stem), self.attention(), self.keys())  # (B, M, L)
        rows = torch.einsum("bml,mlknd->lkbnd", weights, self.components())  # (L, 2, B, n, D)
        logits: Tensor = self.head(self.vit(stem, Prefix(rows, self.layers)))
        return logits

    def loss(self, images: Tensor, labels: Tensor) -> dict[str, Tensor]:
        """Return the cross entropy and, with option `orthogonality`, the penalty."""
        parts = super().loss(images, labels)
        if self.options.orthogonality:
            penalty = orthogonality_penalty(self.keys()) + orthogonality_penalty(self.attention())
            penalty = penalty + orthogonality_penalty(self.components().flatten(2))
            parts["orthogonality"] = self.options.orthogonality * penalty
        return parts

    @property
    def passes(self) -> int:
        return 2


def attended_cosine_similarity(query: Tensor, attention: Tensor, keys: Tensor) -> Tensor:
    """Compute cos(q * A, K) from (B, D), (M, L, D), (M, L, D): (B, M, L).

    The (B, M, L, D) product q * A is never materialized.
    """
    dot = torch.einsum("bd,mld->bml", query, attention * F.normalize(keys, dim=2))
    squared_norm = torch.einsum("bd,mld->bml", query.square(), attention.square())
    return dot / squared_norm.clamp_min(EPSILON).sqrt()


def orthogonality_penalty(rows: Tensor) -> Tensor:
    """Compute ort of the rows (M, L, F), summed over layers: 0 if orthonormal in each layer.

    >>> float(orthogonality_penalty(torch.eye(3).unsqueeze(1)))
    0.0
    """
    gram = torch.einsum("mlf,olf->lmo", rows, rows)  # (L, M, M)
    return (gram - torch.eye(len(rows), device=rows.device)).square().mean(dim=(1, 2)).sum()
