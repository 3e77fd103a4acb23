"""L2P: learning to prompt (Wang et al., CVPR 2022, arXiv:2112.08654).

A pool of M prompts p_m, each with a key k_m, is shared by all tasks. A pass without prompts gives an image's query q, its
class-token feature. The N prompts whose keys are nearest to it go in front of the image's tokens, and the head reads the mean of
what comes out at the prompts' places (or the class token, `read`):

    S(x) = the N indices m with the largest cos(q(x), k_m)
    loss = CE among the task's classes - pull * mean_x sum_{m in S(x)} cos(q(x), k_m)

Only the second part moves the keys. The choice is each image's own, in training and at prediction.

Shapes: B images, M prompts of n rows, N chosen ones, C classes, D width.
"""

from __future__ import annotations

from typing import Literal

import torch
from pydantic import Field, ValidationInfo, field_validator
from torch import Tensor, nn

from caprompt.backbones.vit import Stem, ViT
from caprompt.methods.components.heads import cosines
from caprompt.methods.components.tokens import Tokens
from caprompt.methods.options import Options
from caprompt.methods.registry import register
from caprompt.methods.templates import OwnTaskMethod

__all__ = ["L2P", "L2POptions"]


class L2POptions(Options):
    """The pool and how it is chosen from."""

    pool: int = Field(10, ge=1, description="prompts to choose from")
    length: int = Field(5, ge=1, description="rows (tokens) of one prompt")
    top: int = Field(5, ge=1, validate_default=True, description="prompts that each image gets, those with the nearest keys")
    pull: float = Field(0.1, gt=0, description="weight of pulling the chosen keys towards the image's query")
    read: Literal["prompts", "class-token"] = Field(
        "prompts", description="what the head reads: the mean at the prompts' places, or the class token (as HiDe-Prompt's program)"
    )

    @field_validator("top")
    @classmethod
    def within_pool(cls, value: int, others: ValidationInfo) -> int:
        """No more prompts can be chosen than there are."""
        if value > others.data.get("pool", value):
            raise ValueError("no more prompts can be chosen than the pool has")
        return value


@register("l2p")
class L2P(OwnTaskMethod):
    """A pool of prompts, from which each image takes those with the nearest keys."""

    summary = "a pool of prompts chosen per image by learned keys (CVPR 2022)"
    options_class = L2POptions
    options: L2POptions

    def __init__(self, vit: ViT, options: L2POptions) -> None:
        super().__init__(vit, options)
        self.prompts = nn.Parameter(torch.zeros(options.pool, options.length, vit.config.width))  # (M, n, D)
        self.keys = nn.Parameter(torch.zeros(options.pool, vit.config.width))  # (M, D)

    def begin_task(self, classes: int, generator: torch.Generator) -> None:
        """Further head rows; the pool gets its random start with the first task and is never added to."""
        super().begin_task(classes, generator)
        if len(self.task_sizes) == 1:
            for pool in (self.prompts, self.keys):
                pool.data.copy_(torch.empty(pool.shape).uniform_(-1, 1, generator=generator))

    def chosen(self, stem: Stem) -> tuple[Tensor, Tensor]:
        """The N nearest prompts of each image: their cosines and their indices, (B, N) each."""
        nearest = cosines(self.vit(stem), self.keys).topk(self.options.top, dim=1)
        return nearest.values, nearest.indices

    def logits_under(self, stem: Stem, indices: Tensor) -> Tensor:
        """One pass under each image's own prompts: (B, N) indices -> (B, C)."""
        rows = self.prompts[indices].flatten(1, 2)  # (B, N, n, D) -> (B, N n, D)
        in_front = Tokens(rows.unsqueeze(0), layers=(0,))
        if self.options.read == "class-token":
            features = self.vit(stem, in_front)
        else:
            features = self.vit.encode(stem, in_front)[:, : rows.shape[1]].mean(dim=1)  # (B, N n + all others, D) -> (B, D)
        logits: Tensor = self.head(features)
        return logits

    def loss(self, images: Tensor, labels: Tensor) -> dict[str, Tensor]:
        """Cross entropy of the prompted pass, and the pull of the chosen keys towards the queries."""
        stem = self.vit.stem(images)
        near, indices = self.chosen(stem)
        return {
            "ce": self.own_task_cross_entropy(self.logits_under(stem, indices), labels),
            "pull": -self.options.pull * near.sum(dim=1).mean(),
        }

    def logits(self, images: Tensor) -> Tensor:
        """A pass that chooses and one that answers: (B, C)."""
        stem = self.vit.stem(images)
        return self.logits_under(stem, self.chosen(stem)[1])

    @property
    def passes(self) -> int:
        return 2
