"""Sums over images that do not depend on how the images are divided: into batches, calls, processes or models.

Two things are needed. The sums are in float64, where the order of additions changes the 13th digit at most. And the features of an
image are the same in any batch: matmul kernels round differently for other numbers of rows, and on a CPU with several threads for
other places of a row, in the sixth digit of float32.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, ClassVar

import torch
from pydantic import Field
from torch import Tensor

from caprompt.methods.options import Options

__all__ = ["OTHER_PROJECTION", "OTHER_TRAINING", "ExactSumsOptions", "compute_each"]

#: Why sums of two models do not add up, with the remedy.
OTHER_PROJECTION = "their random projections differ; make them with the same seed"
OTHER_TRAINING = "what was trained on their first task differs; teach them from copies of one model that has learned that task"

GPU_BATCH_SIZE = 32  # images computed at once; a kernel for a fixed number of rows rounds all of them alike


class ExactSumsOptions(Options):
    """Options of methods whose models are sums over images."""

    exact_sums: bool = Field(
        True,
        description="add up features in float64, each image's computed on its own, so that the model does not depend on how images "
        "are divided into calls, processes or models to merge; takes twice the space",
    )

    before_added: ClassVar[Mapping[str, Any]] = MappingProxyType({"exact_sums": False})


def compute_each(function: Callable[[Tensor], Tensor], images: Tensor) -> Tensor:
    """Compute features (n, D) of images (n, 3, S, S), each the same to the last bit as in any other batch on this device.

    On a CPU one image at a time is computed, on a GPU batches of a fixed size, the last one filled with copies; in half precision
    a large backbone may still differ there in its last bits.

    >>> compute_each(lambda images: images.sum(dim=(1, 2, 3)).unsqueeze(1), torch.ones(3, 3, 2, 2)).tolist()
    [[12.0], [12.0], [12.0]]
    """
    if images.device.type == "cpu":
        return torch.cat([function(image) for image in images.split(1)])
    features = []
    for part in images.split(GPU_BATCH_SIZE):
        missing = GPU_BATCH_SIZE - len(part)
        filled = torch.cat([part, part[-1:].expand(missing, -1, -1, -1)]) if missing else part
        features.append(function(filled)[: len(part)])
    return torch.cat(features)
