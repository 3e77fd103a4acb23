"""InfLoRA: interference-free low-rank adaptation (Liang and Li, CVPR 2024, arXiv:2404.00228).

In every layer keys and values are changed by a matrix of low rank, which is all that a task learns beside its head:

    k = (W_k + M_k + B_k A) x,    v = (W_v + M_v + B_v A) x

A is not learned but designed before the task (`prepare`): its rows are the r leading directions, over √3, of the task's own inputs
x outside the subspace P that the inputs of earlier tasks lie in. So A x is almost zero for old inputs, and what B learns does not
disturb them. After the task (`consolidate`) P grows by the task's inputs (see `protected.py`) and the change is merged,

    M <- M + B A,    B <- 0

so that any number of tasks costs the same, and one pass answers.

The share of a task's inputs that P must hold rises with the tasks, 1 - (1 - threshold) approach^t at task t = 0, 1, ...: the
authors' rise is linear and ends at 1 with the last task, which is not known here; with 0.9 it starts as theirs does for ten tasks.

Shapes: B images, N tokens, L layers, D width, r rank.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor, nn

from caprompt.backbones.vit import Adaptation, ViT
from caprompt.methods.base import Batches
from caprompt.methods.options import Options
from caprompt.methods.registry import register
from caprompt.methods.templates import OwnTaskMethod

__all__ = ["InfLoRA", "InfLoRAOptions", "InputMoments", "KeyValueChange", "ProtectedSubspaces", "missing_directions"]


class ProtectedSubspaces(nn.Module):
    """The protected subspace of the inputs of each layer; nothing is protected at first."""

    basis: Tensor  # (L, D, D // 2), orthonormal columns; those not in use are zero
    complement: Tensor  # (L,), does the basis span what is not protected?

    def __init__(self, layers: int, width: int) -> None:
        super().__init__()
        self.register_buffer("basis", torch.zeros(layers, width, width // 2))
        self.register_buffer("complement", torch.zeros(layers, dtype=torch.bool))

    def projectors(self) -> Tensor:
        """P of every layer: (L, D, D), in float64."""
        basis = self.basis.double()
        onto: Tensor = basis @ basis.mT
        identity = torch.eye(onto.shape[1], dtype=onto.dtype, device=onto.device)
        return torch.where(self.complement[:, None, None], identity - onto, onto)

    def free_directions(self, moments: Tensor, count: int) -> Tensor:
        """The `count` leading directions of G (L, D, D) outside the protected subspace: (L, count, D), zero where none is left."""
        projectors = self.projectors()
        vectors = torch.linalg.svd(moments - projectors @ moments).U[:, :, :count]  # (L, D, count)
        free: Tensor = vectors - projectors @ vectors  # where less than `count` are left, the others are arbitrary
        return free.mT

    def protect(self, moments: Tensor, threshold: float) -> None:
        """Grow every layer's subspace until it holds this share of the energy of G (L, D, D)."""
        for layer, (projector, moment) in enumerate(zip(self.projectors(), moments, strict=True)):
            added = missing_directions(projector, moment, threshold)
            self.keep(layer, projector + added @ added.mT)

    def keep(self, layer: int, projector: Tensor) -> None:
        """Store P (D, D) of a layer by whichever of the subspace and its complement is smaller."""
        values, vectors = torch.linalg.eigh(projector)  # ascending: zeros, then ones
        free = int((values < 0.5).sum())
        dual = 2 * free < len(values)
        kept = vectors[:, :free] if dual else vectors[:, free:]
        self.basis[layer] = 0
        self.basis[layer, :, : kept.shape[1]] = kept.to(self.basis)
        self.complement[layer] = dual


def missing_directions(projector: Tensor, moment: Tensor, threshold: float) -> Tensor:
    """The fewest directions (D, n) that P lacks to hold `threshold` of the energy of G; both are (D, D).

    >>> moment = torch.diag(torch.tensor([3.0, 2.0, 1.0]))  # energies 9, 4 and 1 of 14
    >>> [missing_directions(torch.zeros(3, 3), moment, threshold).shape[1] for threshold in (0.6, 0.7, 1.0)]
    [1, 2, 3]
    """
    left, singular, _ = torch.linalg.svd(moment - projector @ moment)
    outside = singular.square().flip(0).cumsum(0).flip(0) / moment.square().sum()  # with 0, 1, ... directions added
    missing: Tensor = left[:, : int((outside > 1 - threshold).sum())]
    return missing


class InfLoRAOptions(Options):
    """The size of the change, and how much of the old is protected."""

    rank: int = Field(10, ge=1, description="rank of each task's change of keys and values")
    threshold: float = Field(0.95, gt=0, lt=1, description="share of the first task's inputs, by energy, that later tasks spare")
    approach: float = Field(0.9, gt=0, le=1, description="what every further task leaves of the share that is not spared")


class KeyValueChange(Adaptation):
    """Adds (M + B A) x to keys and values: `merged` M is (L, 2 D, D), `up` B (L, 2 D, r), `down` A (L, r, D)."""

    def __init__(self, merged: Tensor, up: Tensor, down: Tensor) -> None:
        self.weights = merged, up, down

    def qkv(self, layer: int, x: Tensor) -> Tensor:
        merged, up, down = (weight[layer].to(x.dtype) for weight in self.weights)
        change = F.linear(x, merged) + F.linear(F.linear(x, down), up)  # (B, N, D) -> (B, N, 2 D)
        return F.pad(change, (x.shape[2], 0))  # queries stay as they are


class InputMoments(KeyValueChange):
    """The same, and adds up G = x xᵀ over all tokens that come to each attention layer: `sums` is (L, D, D), float64."""

    def __init__(self, merged: Tensor, up: Tensor, down: Tensor) -> None:
        super().__init__(merged, up, down)
        self.sums = torch.zeros(len(merged), merged.shape[2], merged.shape[2], dtype=torch.float64, device=merged.device)

    def qkv(self, layer: int, x: Tensor) -> Tensor:
        tokens = x.flatten(0, 1).float()  # (B N, D)
        self.sums[layer] += tokens.T @ tokens
        return super().qkv(layer, x)


@register("inflora")
class InfLoRA(OwnTaskMethod):
    """Low-rank changes of keys and values in directions that earlier tasks do not use."""

    summary = "low-rank changes of keys and values, kept out of old tasks' inputs (CVPR 2024)"
    options_class = InfLoRAOptions
    options: InfLoRAOptions

    merged: Tensor  # M, of all calls so far: (L, 2 D, D)
    down: Tensor  # A, of the current call, the same for keys and values: (L, r, D)

    def __init__(self, vit: ViT, options: InfLoRAOptions) -> None:
        super().__init__(vit, options)
        layers, width, rank = vit.config.depth, vit.config.width, min(options.rank, vit.config.width)
        self.register_buffer("merged", torch.zeros(layers, 2 * width, width))
        self.register_buffer("down", torch.zeros(layers, rank, width))
        self.up = nn.Parameter(torch.zeros(layers, 2 * width, rank))  # B, of the current call
        self.protected = ProtectedSubspaces(layers, width)

    def logits(self, images: Tensor) -> Tensor:
        """The head on features of the network as it is changed so far: (B, C)."""
        logits: Tensor = self.head(self.vit(images, KeyValueChange(self.merged, self.up, self.down)))
        return logits

    @property
    def share(self) -> float:
        """The share of the current task's inputs, by energy, that is protected from later tasks."""
        return 1 - (1 - self.options.threshold) * self.options.approach ** (len(self.task_sizes) - 1)

    @torch.no_grad()
    def prepare(self, batches: Batches, generator: torch.Generator) -> None:
        """Design A from the images' inputs to each layer. B is zero, so this changes no answer yet."""
        self.down.copy_(self.protected.free_directions(self.input_moments(batches), self.down.shape[1]) / 3**0.5)

    @torch.no_grad()
    def consolidate(self, batches: Batches, generator: torch.Generator) -> None:
        """Protect the inputs of the images that were learned, then merge the change."""
        self.protected.protect(self.input_moments(batches), self.share)
        self.merged += self.up @ self.down
        self.up.zero_()

    def input_moments(self, batches: Batches) -> Tensor:
        """G of every layer's inputs in the network as it is: (L, D, D)."""
        recording = InputMoments(self.merged, self.up, self.down)
        for images, _ in batches:
            self.vit(images, recording)
        return recording.sums
