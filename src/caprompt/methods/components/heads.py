"""Cosine classifiers: a class is a direction w_c, and an image's logit is how well its feature points that way,

    logit_c(x) = s cos(f(x), w_c).

The directions are learned (`CosineHead`) or are class means (`methods/ncm.py`, `methods/ease.py`).

Shapes: B images, C classes, D width.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import ClassVar

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor, nn

from caprompt.methods.components.statistics import Statistics
from caprompt.methods.options import Options

__all__ = ["CosineHead", "Head", "LinearHead", "PrototypeHead", "ScoreOptions", "append_rows", "cosines", "linear_init"]

# Public code starts a learned scale at 1, from where plain SGD brings it to ten or more within the first epoch. Adam's steps are
# no longer than the learning rate: it would stay near 1, where no image is ever told apart from the others for sure.
FIRST_SCALE = 10.0


def linear_init(shape: Sequence[int], inputs: int, generator: torch.Generator) -> Tensor:
    """First values of weights or biases of neurons with so many inputs, drawn as `nn.Linear` and `nn.Conv2d` draw them."""
    bound = inputs**-0.5
    return torch.empty(tuple(shape)).uniform_(-bound, bound, generator=generator)


def append_rows(rows: Tensor, count: int, inputs: int, generator: torch.Generator) -> Tensor:
    """These rows, bit for bit, and behind them new ones, drawn for neurons with so many inputs."""
    return torch.cat([rows.detach(), linear_init((count, *rows.shape[1:]), inputs, generator).to(rows)])


class Head(nn.Module, ABC):
    """A classifier that gets further rows as classes arrive: trained ones, class means, or whatever a method answers with."""

    @abstractmethod
    def grow(self, classes: int, generator: torch.Generator) -> None:
        """Append rows; the old ones stay bit for bit."""


class LinearHead(Head):
    """A linear classifier, the head of most methods."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(0, width))
        self.bias = nn.Parameter(torch.empty(0))

    def grow(self, classes: int, generator: torch.Generator) -> None:
        """Append rows drawn as `nn.Linear` draws them."""
        width = self.weight.shape[1]
        self.weight = nn.Parameter(append_rows(self.weight, classes, width, generator))
        self.bias = nn.Parameter(append_rows(self.bias, classes, width, generator))

    def forward(self, features: Tensor) -> Tensor:
        return nn.functional.linear(features, self.weight, self.bias)  # (B, D) -> (B, C)


class ScoreOptions(Options):
    """For methods whose logits are similarities, which softmax alone would make all but equal probabilities."""

    scale: float = Field(20.0, gt=0, description="logits are this times the similarity; says how sure answers look, not which")

    at_prediction: ClassVar[frozenset[str]] = Options.at_prediction | {"scale"}


def cosines(features: Tensor, rows: Tensor) -> Tensor:
    """The cosine of every feature with every row: (B, D) and (C, D) -> (B, C).

    >>> cosines(torch.tensor([[3.0, 4.0]]), torch.tensor([[1.0, 0.0], [0.0, 2.0]]))
    tensor([[0.6000, 0.8000]])
    """
    return F.normalize(features, dim=1) @ F.normalize(rows, dim=1).T


class CosineHead(Head):
    """Learned directions, with a fixed scale or, where none is given, a learned one."""

    def __init__(self, width: int, scale: float | None = None) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(0, width))
        self.scale = nn.Parameter(torch.tensor(FIRST_SCALE)) if scale is None else scale

    def grow(self, classes: int, generator: torch.Generator) -> None:
        """Append rows drawn as `nn.Linear` draws them; only their directions count."""
        self.weight = nn.Parameter(append_rows(self.weight, classes, self.weight.shape[1], generator))

    def forward(self, features: Tensor) -> Tensor:
        return self.scale * cosines(features, self.weight)  # (B, D) -> (B, C)


class PrototypeHead(Head):
    """A row per class that is never trained: the mean of the class's features."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.statistics = Statistics(width)

    def grow(self, classes: int, generator: torch.Generator) -> None:
        """Room for further means."""
        self.statistics.grow(classes)

    def forward(self, features: Tensor) -> Tensor:
        return cosines(features, self.statistics.mean)  # (B, D) -> (B, C)
