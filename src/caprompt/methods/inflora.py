"""InfLoRA: interference-free low-rank adaptation (Liang and Li, CVPR 2024, arXiv:2404.00228).

In every layer, keys and values get a low-rank update; a task trains B and its head rows only:

    k = (W_k + M_k + B_k A) x,    v = (W_v + M_v + B_v A) x

A is not trained but designed before the task (`prepare`): its rows are the r leading directions,
divided by √3, of the task's own inputs x outside the subspace P of the inputs of earlier tasks.
A x is then almost zero for old inputs, and training B does not interfere with them.
After the task (`consolidate`), P grows by the task's inputs and the update is merged,

    M <- M + B A,    B <- 0

so that cost does not grow with the number of tasks, and prediction takes one pass.

The protected subspaces are a gradient projection memory with dual storage (DualGPM).
For each layer, G = sum of x xᵀ over its inputs x (its scale does not matter).
With P also the projector on the protected subspace, it is extended by the leading left singular
vectors of (I - P) G until

    |P G|² / |G|² >= threshold          (Frobenius norms)

so that at most 1 - threshold of the energy of the task's inputs lies outside.
While P has at most D / 2 dimensions a basis of it is stored, beyond that a basis of its complement:
half a matrix per layer is enough for any number of tasks.

The threshold rises with the tasks t = 0, 1, ... For a known number T of tasks (`planned_tasks`) it
is threshold + (1 - threshold) t / T, as in the authors' code; tasks beyond T get what the last one
got. For an unknown number (`planned_tasks=0`) it is 1 - (1 - threshold) approach^t; with approach
0.9 the first step is the same for ten tasks.

Shapes: B images, N tokens, L layers, D width, r rank, n added directions.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor, nn

from caprompt.backbones.vit import Adaptation, ViT
from caprompt.methods.base import Batches
from caprompt.methods.options import Options, Schedule
from caprompt.methods.registry import register
from caprompt.methods.templates import OwnTaskMethod

__all__ = ["InfLoRA", "InfLoRAOptions", "InputMomentRecorder", "KeyValueUpdate", "ProtectedSubspaces", "find_missing_directions"]

# -- protected subspaces ---------------------------------------------------------------------------


class ProtectedSubspaces(nn.Module):
    """The protected subspace of each layer's inputs, initially empty."""

    feature_statistics: ClassVar = ("basis", "complement")  # principal directions of the inputs
    basis: Tensor  # (L, D, D // 2), orthonormal columns; unused columns are zero
    complement: Tensor  # (L,), whether the basis spans the complement of the protected subspace

    def __init__(self, layers: int, width: int) -> None:
        super().__init__()
        self.register_buffer("basis", torch.zeros(layers, width, width // 2))
        self.register_buffer("complement", torch.zeros(layers, dtype=torch.bool))

    def projectors(self) -> Tensor:
        """Return P of every layer: (L, D, D), in float64."""
        basis = self.basis.double()
        onto: Tensor = basis @ basis.mT
        identity = torch.eye(onto.shape[1], dtype=onto.dtype, device=onto.device)
        return torch.where(self.complement[:, None, None], identity - onto, onto)

    def find_free_directions(self, moments: Tensor, count: int) -> Tensor:
        """Return leading directions of G (L, D, D) outside P: (L, count, D), zero if exhausted."""
        projectors = self.projectors()
        vectors = torch.linalg.svd(moments - projectors @ moments).U[:, :, :count]  # (L, D, count)
        free: Tensor = vectors - projectors @ vectors  # where fewer than `count` are left, the others were arbitrary
        return free.mT

    def protect(self, moments: Tensor, threshold: float) -> None:
        """Extend every layer's subspace until it holds this share of the energy of G (L, D, D)."""
        for layer, (projector, moment) in enumerate(zip(self.projectors(), moments, strict=True)):
            added = find_missing_directions(projector, moment, threshold)
            self._store(layer, projector + added @ added.mT)

    def _store(self, layer: int, projector: Tensor) -> None:
        """Store P (D, D) as a basis of the subspace or of its complement, whichever is smaller."""
        values, vectors = torch.linalg.eigh(projector)  # ascending: zeros, then ones
        free = int((values < 0.5).sum())
        is_dual = 2 * free < len(values)
        basis = vectors[:, :free] if is_dual else vectors[:, free:]
        self.basis[layer] = 0
        self.basis[layer, :, : basis.shape[1]] = basis.to(self.basis)
        self.complement[layer] = is_dual


def find_missing_directions(projector: Tensor, moment: Tensor, threshold: float) -> Tensor:
    """Return the fewest directions (D, n) that P lacks to hold `threshold` of the energy of G.

    P and G are (D, D).

    >>> moment = torch.diag(torch.tensor([3.0, 2.0, 1.0]))  # energies 9, 4 and 1 of 14
    >>> projector = torch.zeros(3, 3)
    >>> [find_missing_directions(projector, moment, share).shape[1] for share in (0.6, 0.7, 1.0)]
    [1, 2, 3]
    """
    left, singular, _ = torch.linalg.svd(moment - projector @ moment)
    outside = singular.square().flip(0).cumsum(0).flip(0) / moment.square().sum()  # with 0, 1, ... directions added
    missing: Tensor = left[:, : int((outside > 1 - threshold).sum())]
    return missing


# -- method ----------------------------------------------------------------------------------------


class InfLoRAOptions(Options):
    """Options of the low-rank update and of the protection of earlier tasks."""

    schedule: Schedule = Field("quarter-cosine", description="learning rate schedule within a task; by default as in its code")
    rank: int = Field(10, ge=1, description="rank of each task's update of keys and values")
    threshold: float = Field(0.95, gt=0, lt=1, description="share of the energy of the first task's inputs that is protected")
    planned_tasks: int = Field(
        10, ge=0, description="tasks over which the protected share rises linearly towards 1; 0 if their number is not known"
    )
    approach: float = Field(
        0.9, gt=0, le=1, description="planned_tasks=0: factor by which every further task reduces the unprotected share"
    )

    before_added: ClassVar[Mapping[str, Any]] = MappingProxyType({"planned_tasks": 0})


class KeyValueUpdate(Adaptation):
    """Update of keys and values by (M + B A) x.

    `merged` M is (L, 2 D, D), `up` B (L, 2 D, r), `down` A (L, r, D).
    """

    def __init__(self, merged: Tensor, up: Tensor, down: Tensor) -> None:
        self.weights = merged, up, down

    def qkv(self, layer: int, x: Tensor) -> Tensor:
        merged, up, down = (weight[layer].to(x.dtype) for weight in self.weights)
        update = F.linear(x, merged) + F.linear(F.linear(x, down), up)  # (B, N, D) -> (B, N, 2 D)
        return F.pad(update, (x.shape[2], 0))  # queries are not changed

    def select(self, images: slice) -> KeyValueUpdate | None:
        return self


class InputMomentRecorder(KeyValueUpdate):
    """The same update, which also sums G = x xᵀ over all input tokens of each layer.

    `sums` is (L, D, D), float64.
    """

    def __init__(self, merged: Tensor, up: Tensor, down: Tensor) -> None:
        super().__init__(merged, up, down)
        self.sums = torch.zeros(len(merged), merged.shape[2], merged.shape[2], dtype=torch.float64, device=merged.device)

    def qkv(self, layer: int, x: Tensor) -> Tensor:
        tokens = x.flatten(0, 1).float()  # (B N, D)
        self.sums[layer] += tokens.T @ tokens
        return super().qkv(layer, x)

    def select(self, images: slice) -> None:
        return None  # threads would add to the same sums


@register("inflora")
class InfLoRA(OwnTaskMethod):
    """Low-rank updates of keys and values in directions that earlier tasks do not use."""

    summary = "low-rank updates of keys and values outside old tasks' inputs (CVPR 2024)"
    options_class = InfLoRAOptions
    can_train_in_threads = True
    check_variants: ClassVar = ({"planned_tasks": 0},)
    options: InfLoRAOptions
    feature_statistics: ClassVar = ("down",)  # principal directions of the inputs

    merged: Tensor  # M, of all calls so far: (L, 2 D, D)
    down: Tensor  # A, of the current call, the same for keys and values: (L, r, D)

    def __init__(self, vit: ViT, options: InfLoRAOptions) -> None:
        super().__init__(vit, options)
        layers, width, rank = vit.config.depth, vit.config.width, min(options.rank, vit.config.width)
        self.register_buffer("merged", torch.zeros(layers, 2 * width, width))
        self.register_buffer("down", torch.zeros(layers, rank, width))
        self.up = nn.Parameter(torch.zeros(layers, 2 * width, rank))  # B, of the current call
        self.protected = ProtectedSubspaces(layers, width)

    @property
    def learning_state(self) -> tuple[str, ...]:
        """The subspaces of inputs, and A, which is designed anew in every call."""
        return ("protected", "down")

    def logits(self, images: Tensor) -> Tensor:
        """Apply the head to the features of the updated network: (B, C)."""
        logits: Tensor = self.head(self.vit(images, KeyValueUpdate(self.merged, self.up, self.down)))
        return logits

    @property
    def protected_share(self) -> float:
        """Share of the energy of the current task's inputs that is protected from later tasks."""
        threshold, planned, task = self.options.threshold, self.options.planned_tasks, len(self.task_sizes) - 1
        if planned:
            return threshold + (1 - threshold) * min(task, planned - 1) / planned
        return 1 - (1 - threshold) * self.options.approach**task

    @torch.no_grad()
    def prepare(self, batches: Batches, generator: torch.Generator) -> None:
        """Design A from the inputs of each layer. B is zero, so predictions do not change yet."""
        self.down.copy_(self.protected.find_free_directions(self.measure_input_moments(batches), self.down.shape[1]) / 3**0.5)

    @torch.no_grad()
    def consolidate(self, batches: Batches, generator: torch.Generator) -> None:
        """Protect the inputs of the task's images, then merge the update."""
        self.protected.protect(self.measure_input_moments(batches), self.protected_share)
        self.merged += self.up @ self.down
        self.up.zero_()

    def measure_input_moments(self, batches: Batches) -> Tensor:
        """Compute G of every layer's inputs in the current network: (L, D, D)."""
        recorder = InputMomentRecorder(self.merged, self.up, self.down)
        for images, _ in batches:
            self.vit(images, recorder)
        return recorder.sums
