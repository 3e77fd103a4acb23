"""L2P: learning to prompt (Wang et al., CVPR 2022, arXiv:2112.08654).

A pool of M prompts p_m, each with a key k_m, is shared by all tasks.
The query q of an image is its class-token feature from a pass without prompts.
The N prompts whose keys are nearest to the query are prepended to the image's tokens, and the head
reads the mean of the output tokens at the prompt positions (or the class token, see `read`):

    S(x) = the N indices m with the largest cos(q(x), k_m)
    loss = CE among the task's classes - pull * mean_x sum_{m in S(x)} cos(q(x), k_m)

Only the second term trains the keys. Prompts are selected per image, in training and at prediction.

Shapes: B images, M prompts of n rows, N selected prompts, C classes, D width.
"""

from __future__ import annotations

from typing import ClassVar, Literal

import torch
from pydantic import Field, ValidationInfo, field_validator
from torch import Tensor, nn

from caprompt.backbones.vit import Stem, ViT
from caprompt.methods.components.heads import cosines
from caprompt.methods.components.tokens import Tokens
from caprompt.methods.options import PromptOptions
from caprompt.methods.registry import register
from caprompt.methods.templates import OwnTaskMethod

__all__ = ["L2P", "L2POptions"]


class L2POptions(PromptOptions):
    """Options of the prompt pool and of prompt selection."""

    pool: int = Field(10, ge=1, description="number of prompts in the pool")
    length: int = Field(5, ge=1, description="rows (tokens) of one prompt")
    top: int = Field(5, ge=1, validate_default=True, description="prompts selected for each image, those with the nearest keys")
    pull: float = Field(0.1, gt=0, description="weight of the loss that pulls the selected keys towards the image's query")
    read: Literal["prompts", "class-token"] = Field(
        "prompts",
        description="input of the head: mean output at the prompt positions, or the class token (as in HiDe-Prompt's code)",
    )

    @field_validator("top")
    @classmethod
    def check_pool_size(cls, value: int, others: ValidationInfo) -> int:
        """Reject a `top` that is larger than the pool."""
        if value > others.data.get("pool", value):
            raise ValueError("it must not exceed 'pool', the number of prompts")
        return value


@register("l2p")
class L2P(OwnTaskMethod):
    """A pool of prompts, from which each image gets those with the nearest keys."""

    summary = "a pool of prompts selected per image by learned keys (CVPR 2022)"
    options_class = L2POptions
    can_train_in_threads = True
    check_options: ClassVar = {**OwnTaskMethod.check_options, "length": 4}
    options: L2POptions

    def __init__(self, vit: ViT, options: L2POptions) -> None:
        super().__init__(vit, options)
        self.prompts = nn.Parameter(torch.zeros(options.pool, options.length, vit.config.width))  # (M, n, D)
        self.keys = nn.Parameter(torch.zeros(options.pool, vit.config.width))  # (M, D)

    def begin_task(self, num_classes: int, generator: torch.Generator) -> None:
        """Add head rows; the pool is initialized with the first task and keeps its size."""
        super().begin_task(num_classes, generator)
        if len(self.task_sizes) == 1:
            for pool in (self.prompts, self.keys):
                pool.data.copy_(torch.empty(pool.shape).uniform_(-1, 1, generator=generator))

    def select_prompts(self, stem: Stem) -> tuple[Tensor, Tensor]:
        """Return the cosines and indices of the N nearest prompts of each image, (B, N) each."""
        nearest = cosines(self.vit(stem), self.keys).topk(self.options.top, dim=1)
        return nearest.values, nearest.indices

    def logits_with_prompts(self, stem: Stem, indices: Tensor) -> Tensor:
        """Compute logits with the selected prompts of each image: (B, N) indices -> (B, C)."""
        rows = self.prompts[indices].flatten(1, 2)  # (B, N, n, D) -> (B, N n, D)
        tokens = Tokens(rows.unsqueeze(0), layers=(0,))
        if self.options.read == "class-token":
            features = self.vit(stem, tokens)
        else:
            features = self.vit.encode(stem, tokens)[:, : rows.shape[1]].mean(dim=1)  # (B, N n + all others, D) -> (B, D)
        logits: Tensor = self.head(features)
        return logits

    def loss(self, images: Tensor, labels: Tensor) -> dict[str, Tensor]:
        """Return the cross entropy and the pull of the selected keys towards the queries."""
        stem = self.vit.stem(images)
        similarities, indices = self.select_prompts(stem)
        return {
            "ce": self.own_task_cross_entropy(self.logits_with_prompts(stem, indices), labels),
            "pull": -self.options.pull * similarities.sum(dim=1).mean(),
        }

    def logits(self, images: Tensor) -> Tensor:
        """Compute logits (B, C): one pass to select prompts, one with them."""
        stem = self.vit.stem(images)
        return self.logits_with_prompts(stem, self.select_prompts(stem)[1])

    @property
    def passes(self) -> int:
        return 2
