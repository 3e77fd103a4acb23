"""The images of a call when several processes share them: which ones this process has, and how to get some of all of them.

Batches are dealt out in turn: batch j of process r is batch j x size + r of the call. So every image has a place in the call that
does not depend on the number of processes, and random choices among the places are the same for any number.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import zip_longest

import torch
from torch import Tensor

from caprompt.utils.communication import ALONE, Communicator

__all__ = ["SharedRows"]


class SharedRows:
    """The places, among those of all images of a call, of the images in this process's batches."""

    def __init__(self, sizes: Sequence[int], communicator: Communicator = ALONE) -> None:
        """Make it from the number of images of each own batch; every process has to do so."""
        self.communicator = communicator
        places: list[range] = []
        start = 0
        for dealt in zip_longest(*communicator.gather(list(sizes)), fillvalue=0):
            for rank, size in enumerate(dealt):
                places += [range(start, start + size)] if rank == communicator.rank else []
                start += size
        self.total = start
        self.places = torch.tensor([place for part in places for place in part], dtype=torch.long)  # (n,)

    def gather(self, rows: Sequence[Tensor], chosen: Tensor) -> list[Tensor]:
        """Return what all processes have at the chosen places (k,), from tensors with a row for each own image: (n, ...).

        >>> SharedRows([2, 1]).gather([torch.tensor([5, 6, 7])], torch.tensor([2, 0]))
        [tensor([7, 5])]
        """
        target = torch.full((self.total,), -1).scatter(0, chosen, torch.arange(len(chosen)))[self.places]  # (n,)
        own = target >= 0
        gathered = []
        for tensor in rows:
            selected = tensor.new_zeros(len(chosen), *tensor.shape[1:])
            selected[target[own].to(tensor.device)] = tensor[own.to(tensor.device)]
            self.communicator.add_up(selected)
            gathered.append(selected)
        return gathered
