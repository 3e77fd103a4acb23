"""Which task does an image belong to? A small classifier on the features of the un-prompted backbone (HiDe-Prompt's TII).

    adapted(z) = norm(z + W2 gelu(W1 z + b1) + b2),     logits = V adapted(z) + v

with one logit per class; an image's task is that of its likeliest class. It learns from remembered class statistics alone, between
tasks. Its weights are therefore buffers: no training step reaches them, and they are saved like anything else that was learned.

Shapes: B images, C classes, D width, 2 D hidden.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from caprompt.methods.base import linear_start, with_new_rows

__all__ = ["TaskIdentity"]


class TaskIdentity(nn.Module):
    """A classifier that grows with the classes and learns only inside `learning`."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.width = width
        shapes = {"into": (2 * width, width), "into_bias": (2 * width,), "back": (width, 2 * width), "back_bias": (width,)}
        for name, shape in shapes.items():
            self.register_buffer(name, torch.zeros(shape))
        self.register_buffer("scale", torch.ones(width))
        self.register_buffer("shift", torch.zeros(width))
        self.register_buffer("rows", torch.zeros(0, width))
        self.register_buffer("rows_bias", torch.zeros(0))

    into: Tensor  # W1, (2 D, D)
    into_bias: Tensor  # (2 D,)
    back: Tensor  # W2, (D, 2 D)
    back_bias: Tensor  # (D,)
    scale: Tensor  # of the norm, (D,)
    shift: Tensor  # (D,)
    rows: Tensor  # V, (C, D)
    rows_bias: Tensor  # (C,)

    def grow(self, classes: int, generator: torch.Generator) -> None:
        """Further classes; with the first ones the hidden layer gets its random start. Biases start at zero."""
        if not len(self.rows):
            for weight in (self.into, self.back):
                weight.copy_(linear_start(weight.shape, weight.shape[1], generator))
        self.rows = with_new_rows(self.rows, classes, self.width, generator)
        self.rows_bias = torch.cat([self.rows_bias, self.rows_bias.new_zeros(classes)])

    def forward(self, features: Tensor) -> Tensor:
        """(B, D) -> (B, C)."""
        hidden = F.gelu(F.linear(features, self.into, self.into_bias))  # (B, 2 D)
        adapted = F.layer_norm(
            features + F.linear(hidden, self.back, self.back_bias), (self.width,), self.scale, self.shift, eps=1e-5
        )
        return F.linear(adapted, self.rows, self.rows_bias)

    @contextmanager
    def learning(self) -> Iterator[None]:
        """Within it the weights are parameters, so that an optimiser finds them."""
        names = [name for name, _ in self.named_buffers()]
        for name in names:
            setattr(self, name, nn.Parameter(getattr(self, name)))
        try:
            yield
        finally:
            for name in names:
                weight = getattr(self, name).detach()
                delattr(self, name)
                self.register_buffer(name, weight)
