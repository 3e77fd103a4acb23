"""CODA-Prompt: decomposed attention-based prompting (Smith et al., CVPR 2023, arXiv:2211.13218).

An image's prefix prompt is a weighted sum of components p_m. Each has a key K_m, and an attention A_m that says which features of
the query q, the class-token feature of a pass without prompts, the key is compared with; all three exist once per prompted layer:

    alpha_m(x) = cos(q(x) * A_m, K_m)          phi(x) = sum_m alpha_m(x) p_m

Nothing is chosen, so the cross entropy trains all of it. A task adds `components` components, which start orthogonal to each other
and to all before them; those of earlier tasks are frozen, but go on contributing. Optionally a penalty keeps them orthogonal:

    ort(X) = mean((X X^T - I)^2)               loss = CE among the task's classes + orthogonality * sum [ort(K) + ort(A) + ort(p)]

Shapes: B images, M components so far, L prompted layers, n rows of keys (and as many of values), C classes, D width.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor

from caprompt.backbones.vit import ViT
from caprompt.methods.components.growing_rows import GrowingRows, orthonormal_rows
from caprompt.methods.components.prefix import Prefix
from caprompt.methods.options import Options
from caprompt.methods.registry import register
from caprompt.methods.templates import OwnTaskMethod

__all__ = ["CODAPrompt", "CODAPromptOptions", "attended_cosine", "orthogonality"]

EPSILON = 1e-12  # keeps a vanishing query from dividing by zero


class CODAPromptOptions(Options):
    """The components and the layers that they prompt."""

    components: int = Field(10, ge=1, description="components that each task adds")
    length: int = Field(8, ge=2, multiple_of=2, description="prompt rows per layer, keys and values counted together")
    prompted: int = Field(5, ge=1, description="the first so many layers are prompted; at most all")
    orthogonality: float = Field(0.0, ge=0, description="weight of keeping components, keys and attentions orthogonal; 0 for none")


@register("coda-prompt")
class CODAPrompt(OwnTaskMethod):
    """Prompts composed of components, weighted by attended cosines."""

    summary = "prompts composed of components by attention, some added per task (CVPR 2023)"
    options_class = CODAPromptOptions
    options: CODAPromptOptions

    def __init__(self, vit: ViT, options: CODAPromptOptions) -> None:
        super().__init__(vit, options)
        width = vit.config.width
        self.layers = range(min(options.prompted, vit.config.depth))
        self.components = GrowingRows(len(self.layers), 2, options.length // 2, width)  # (M, L, 2, n, D)
        self.keys = GrowingRows(len(self.layers), width)  # (M, L, D)
        self.attention = GrowingRows(len(self.layers), width)  # (M, L, D)

    def begin_task(self, classes: int, generator: torch.Generator) -> None:
        """Further components with keys and attentions; in each layer, orthogonal to all before them."""
        super().begin_task(classes, generator)
        for rows in (self.components, self.keys, self.attention):
            before = rows().flatten(2)  # (M, L, F)
            new = [orthonormal_rows(self.options.components, before[:, slot], generator) for slot in range(len(self.layers))]
            rows.append(torch.stack(new, dim=1).unflatten(2, rows.newest.shape[2:]))  # (components, L, ...)

    def logits(self, images: Tensor) -> Tensor:
        """A pass for the query and one under the composed prompts: (B, C)."""
        stem = self.vit.stem(images)
        weights = attended_cosine(self.vit(stem), self.attention(), self.keys())  # (B, M, L)
        rows = torch.einsum("bml,mlknd->lkbnd", weights, self.components())  # (L, 2, B, n, D)
        logits: Tensor = self.head(self.vit(stem, Prefix(rows, self.layers)))
        return logits

    def loss(self, images: Tensor, labels: Tensor) -> dict[str, Tensor]:
        """Cross entropy, and with `orthogonality` its penalty."""
        parts = super().loss(images, labels)
        if self.options.orthogonality:
            penalty = orthogonality(self.keys()) + orthogonality(self.attention()) + orthogonality(self.components().flatten(2))
            parts["orthogonality"] = self.options.orthogonality * penalty
        return parts

    @property
    def passes(self) -> int:
        return 2


def attended_cosine(query: Tensor, attention: Tensor, keys: Tensor) -> Tensor:
    """cos(q * A, K): (B, D), (M, L, D), (M, L, D) -> (B, M, L), without forming the (B, M, L, D) products q * A."""
    along = torch.einsum("bd,mld->bml", query, attention * F.normalize(keys, dim=2))
    squared = torch.einsum("bd,mld->bml", query.square(), attention.square())
    return along / squared.clamp_min(EPSILON).sqrt()


def orthogonality(rows: Tensor) -> Tensor:
    """ort, summed over layers: how far the rows (M, L, F) are from being orthonormal in each layer.

    >>> float(orthogonality(torch.eye(3).unsqueeze(1)))
    0.0
    """
    products = torch.einsum("mlf,olf->lmo", rows, rows)  # (L, M, M)
    return (products - torch.eye(len(rows), device=rows.device)).square().mean(dim=(1, 2)).sum()
