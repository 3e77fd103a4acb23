"""A contrastive loss between the features of a batch and the centers of earlier classes."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

__all__ = ["CONTRAST", "contrastive_loss"]

#: Why a batch with this loss cannot be divided among processes.
CONTRAST = "its contrastive loss compares the images of a batch with each other"

TEMPERATURE = 0.8


def contrastive_loss(features: Tensor, centers: Tensor, occupied: Tensor) -> Tensor:
    """Compute CE(M M^T / 0.8, identity) for M = [centers; features], averaged over rows.

    `centers` are (R, D), `features` (B, D). Centers that are not `occupied` (R,) are left out.

    >>> one = torch.eye(2)[:1]
    >>> expected = torch.log1p(torch.exp(torch.tensor(-1 / 0.8)))
    >>> bool(torch.isclose(contrastive_loss(one, torch.eye(2)[1:], torch.tensor([True])), expected))
    True
    """
    rows = torch.cat([centers, features])
    valid = torch.cat([occupied, occupied.new_ones(features.shape[0])])  # (R + B,)
    similarities = (rows @ rows.T / TEMPERATURE).masked_fill(~valid, float("-inf"))  # masks the columns of empty centers
    losses = F.cross_entropy(similarities, torch.arange(rows.shape[0], device=rows.device), reduction="none")
    return torch.where(valid, losses, 0).sum() / valid.sum()
