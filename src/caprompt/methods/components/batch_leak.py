"""The released programs' reading of prompts, kept for one purpose: to compare with tables that were published with it.

The program that its authors published for CAPrompt, like those of DualPrompt and HiDe-Prompt before it, builds the prompts of a
batch as (layer, key | value, image, ...) and then *reshapes* them to (layer, image, key | value, ...) without swapping the axes.
The rows K_0 ... K_{B-1}, V_0 ... V_{B-1} are thereby dealt out two at a time: image b takes number 2 b as its keys and number
2 b + 1 as its values, whoever they belong to. An image gets its neighbours' prompts, half of a batch gets keys as values and the
other half values as keys, and only an image alone gets its own. Where a test batch holds one task, task identity leaks.

Nothing here is done unless `protocol="released"` is asked for; `protocols.py` sees to it that what comes out is marked.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field
from torch import Tensor

from caprompt.methods.options import Options

__all__ = ["ReleasedOptions", "mix_batch"]


class ReleasedOptions(Options):
    """For methods whose released program mixes the prompts of a batch."""

    protocol: Literal["honest", "released"] = Field(
        "honest", description="'released' repeats the leak of the authors' program, only to compare with published tables"
    )


def mix_batch(rows: Tensor) -> Tensor:
    """What each image of one batch gets in place of its own rows: (L, 2, B, n, D) -> (L, 2, B, n, D).

    >>> import torch
    >>> keys_and_values = torch.tensor([[0, 1, 2, 3], [10, 11, 12, 13]]).view(1, 2, 4, 1, 1)
    >>> mix_batch(keys_and_values).view(2, 4).tolist()
    [[0, 2, 10, 12], [1, 3, 11, 13]]
    """
    layers, two, batch = rows.shape[:3]
    return rows.reshape(layers, batch, two, *rows.shape[3:]).transpose(1, 2)
