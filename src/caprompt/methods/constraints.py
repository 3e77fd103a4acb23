"""CAPrompt's two constraints, Eq. 6 and Eq. 8, which keep a mixture of prompts at least as good as one task's prompt."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

__all__ = ["concave_gap", "linear_loss"]


def concave_gap(p_now: Tensor, g_now: Tensor, g_old: Tensor, g_mixed: Tensor) -> Tensor:
    """Eq. 6: how far the mixture falls short of mixing the predictions; at most zero where the prediction is concave.

    >>> import torch
    >>> concave_gap(torch.tensor(0.25), torch.tensor(0.8), torch.tensor(0.4), torch.tensor(0.5))
    tensor(0.)
    """
    return p_now * g_now + (1 - p_now) * g_old - g_mixed


def linear_loss(now: Tensor, previous: Tensor, first: Tensor) -> Tensor:
    """Eq. 8 over the full width, averaged over layers, keys and values, and rows: each prompt is (L, 2, n, D).

    >>> import torch
    >>> first = torch.zeros(1, 2, 1, 3)
    >>> round(float(linear_loss(first + 2, first + 1, first)), 6)
    0.0
    """
    return 1 - F.cosine_similarity(now - first.detach(), previous.detach() - first.detach(), dim=-1).mean()
