"""The reshape bug of the released implementations, for comparison with published tables only.

The code published for CAPrompt, like that of DualPrompt and HiDe-Prompt before it, builds the
prompts of a batch as (layer, key | value, image, ...) and then *reshapes* them to (layer, image,
key | value, ...) without transposing the axes. Of the rows K_0 ... K_{B-1}, V_0 ... V_{B-1}, image
b then gets row 2 b as its keys and row 2 b + 1 as its values, whichever image they belong to. An
image gets the prompts of other images, half of the batch gets keys as values and the other half
values as keys, and only an image alone in its batch gets its own. If a test batch holds one task
only, task identity leaks.

This is used with `protocol="released"` only; `protocols.py` makes sure that such results are
marked.

Shapes: L prompted layers, B images, n rows, D width.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field
from torch import Tensor

from caprompt.methods.options import Options

__all__ = ["ReleasedOptions", "mix_batch"]


class ReleasedOptions(Options):
    """Options of methods whose released implementation mixes the prompts of a batch."""

    protocol: Literal["honest", "released"] = Field(
        "honest", description="'released' reproduces the batch leak of the authors' code, only for comparison with published tables"
    )


def mix_batch(rows: Tensor) -> Tensor:
    """Return the rows that each image gets instead of its own: (L, 2, B, n, D) -> (L, 2, B, n, D).

    >>> import torch
    >>> keys_and_values = torch.tensor([[0, 1, 2, 3], [10, 11, 12, 13]]).view(1, 2, 4, 1, 1)
    >>> mix_batch(keys_and_values).view(2, 4).tolist()
    [[0, 2, 10, 12], [1, 3, 11, 13]]
    """
    layers, two, batch = rows.shape[:3]
    return rows.reshape(layers, batch, two, *rows.shape[3:]).transpose(1, 2)
