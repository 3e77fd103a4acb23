"""Subspaces of a network's inputs that later tasks should not disturb: gradient projection memory, kept dually (DualGPM).

For each layer, G = sum of x xᵀ over its inputs x (its scale plays no part). A task's own subspace is grown from the leading left
singular vectors of what is not protected yet, (I - P) G with P the projector on the protected subspace, until

    |P G|² / |G|² >= threshold          (Frobenius norms)

so that at most 1 - threshold of the energy of the task's inputs lies outside. While P has at most D / 2 dimensions a basis of it is
kept, beyond that a basis of its complement: half a matrix per layer is enough for any number of tasks.

Shapes: L layers, D width, n added directions.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

__all__ = ["ProtectedSubspaces", "missing_directions"]


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
