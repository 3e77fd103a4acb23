"""Classifier heads that grow with the classes.

    LinearHead      logit_c(x) = w_c . f(x) + b_c, the head of most methods
    NewestRowsHead  the same, where only the newest task's rows are trained
    CosineHead      logit_c(x) = s cos(f(x), w_c), with a fixed or a trained scale s
    PrototypeHead   logit_c(x) = cos(f(x), mean of the features of class c), not trained

Shapes: B images, C classes, D width.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor, nn

from caprompt.methods.components.growing_rows import GrowingRows
from caprompt.methods.components.statistics import Statistics
from caprompt.methods.options import Options

__all__ = [
    "CosineHead",
    "Head",
    "LinearHead",
    "LogitScaleOptions",
    "NewestRowsHead",
    "PrototypeHead",
    "ProxyOptions",
    "append_rows",
    "cosines",
    "linear_init",
]

# Public code initializes a trained scale to 1, and plain SGD brings it to ten or more within the
# first epoch. The steps of Adam are no larger than the learning rate: the scale would stay near 1,
# where all class probabilities are nearly equal.
INITIAL_SCALE = 10.0


def linear_init(shape: Sequence[int], inputs: int, generator: torch.Generator) -> Tensor:
    """Draw initial weights or biases of units with so many inputs, as in `nn.Linear`."""
    bound = inputs**-0.5
    return torch.empty(tuple(shape)).uniform_(-bound, bound, generator=generator)


def append_rows(rows: Tensor, count: int, inputs: int, generator: torch.Generator) -> Tensor:
    """Return the rows, unchanged, followed by `count` new ones from `linear_init`."""
    return torch.cat([rows.detach(), linear_init((count, *rows.shape[1:]), inputs, generator).to(rows)])


class Head(nn.Module, ABC):
    """A classifier that grows as classes arrive."""

    @abstractmethod
    def grow(self, num_classes: int, generator: torch.Generator) -> None:
        """Add outputs for new classes; those of old classes stay bit for bit."""


class LinearHead(Head):
    """A linear classifier."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(0, width))
        self.bias = nn.Parameter(torch.empty(0))

    def grow(self, num_classes: int, generator: torch.Generator) -> None:
        """Append rows initialized as in `nn.Linear`."""
        width = self.weight.shape[1]
        self.weight = nn.Parameter(append_rows(self.weight, num_classes, width, generator))
        self.bias = nn.Parameter(append_rows(self.bias, num_classes, width, generator))

    def forward(self, features: Tensor) -> Tensor:
        """Compute logits: (B, D) -> (B, C)."""
        return F.linear(features, self.weight, self.bias)


class NewestRowsHead(Head):
    """A linear classifier whose rows of earlier tasks are frozen: not even weight decay changes them."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weights = GrowingRows(width)  # (C, D)
        self.biases = GrowingRows()  # (C,)

    def grow(self, num_classes: int, generator: torch.Generator) -> None:
        """Freeze the existing rows and append new ones, initialized as in `nn.Linear`."""
        width = self.weights.newest.shape[1]
        self.weights.append(linear_init((num_classes, width), width, generator))
        self.biases.append(linear_init((num_classes,), width, generator))

    @property
    def weight(self) -> Tensor:
        """All rows, (C, D)."""
        rows: Tensor = self.weights()
        return rows

    @property
    def bias(self) -> Tensor:
        """All biases, (C,)."""
        biases: Tensor = self.biases()
        return biases

    def forward(self, features: Tensor) -> Tensor:
        """Compute logits: (B, D) -> (B, C)."""
        return F.linear(features, self.weight, self.bias)


class LogitScaleOptions(Options):
    """Options of methods with similarities as logits; their softmax would be nearly uniform."""

    scale: float = Field(20.0, gt=0, description="factor on the logits; affects scores, not the predicted class")

    at_prediction: ClassVar[frozenset[str]] = Options.at_prediction | {"scale"}


class ProxyOptions(Options):
    """Options of methods that train with a temporary cosine head."""

    proxy_scale: float = Field(1.0, gt=0, description="initial scale of the temporary head's cosines; 10 suits Adam, 1 SGD")

    before_added: ClassVar[Mapping[str, Any]] = MappingProxyType({"proxy_scale": INITIAL_SCALE})


def cosines(features: Tensor, rows: Tensor) -> Tensor:
    """Return the cosine of every feature with every row: (B, D) and (C, D) -> (B, C).

    >>> cosines(torch.tensor([[3.0, 4.0]]), torch.tensor([[1.0, 0.0], [0.0, 2.0]]))
    tensor([[0.6000, 0.8000]])
    """
    return F.normalize(features, dim=1) @ F.normalize(rows, dim=1).T


class CosineHead(Head):
    """A cosine classifier with a fixed scale, or a trained one, `initial` at first, if `scale` is None."""

    def __init__(self, width: int, scale: float | None = None, initial: float = INITIAL_SCALE) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(0, width))
        self.scale = nn.Parameter(torch.tensor(initial)) if scale is None else scale

    def grow(self, num_classes: int, generator: torch.Generator) -> None:
        """Append rows initialized as in `nn.Linear`; only their directions matter."""
        self.weight = nn.Parameter(append_rows(self.weight, num_classes, self.weight.shape[1], generator))

    def forward(self, features: Tensor) -> Tensor:
        """Compute scaled cosines: (B, D) -> (B, C)."""
        return self.scale * cosines(features, self.weight)


class PrototypeHead(Head):
    """A nearest-class-mean classifier: the cosine with the mean feature of each class."""

    def __init__(self, width: int, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        self.statistics = Statistics(width, dtype)

    def grow(self, num_classes: int, generator: torch.Generator) -> None:
        """Add empty means for new classes."""
        self.statistics.grow(num_classes)

    def forward(self, features: Tensor) -> Tensor:
        """Compute cosines: (B, D) -> (B, C)."""
        return cosines(features, self.statistics.mean.to(features))
