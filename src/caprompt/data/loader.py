"""Batches of transformed pictures as tensors, prepared ahead in threads."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing
from itertools import islice

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from caprompt.data.prefetch import in_order
from caprompt.data.samples import Samples
from caprompt.data.store import ImageStore
from caprompt.data.transforms import Transform

__all__ = ["batches"]

BATCHES_AHEAD = 2


def batches(
    samples: Samples,
    targets: Sequence[int],
    transform: Transform,
    store: ImageStore,
    batch_size: int,
    *,
    seed: Sequence[int] | None,
    shuffle: bool,
    workers: int = 2,
) -> Iterator[tuple[Tensor, Tensor]]:
    """Images (B, 3, S, S) as float32 and targets (B,) as int64, each picture once; the last batch may be short.

    The same `seed` gives the same bits, whatever the number of `workers`: every picture's augmentation has its own
    generator, made from the seed and the picture's position in `samples`. No seed is a seed of no numbers.
    """
    if len(targets) != len(samples):
        raise ValueError(f"{len(samples)} samples but {len(targets)} targets")
    if shuffle and seed is None:
        raise ValueError("shuffling needs a seed")
    numbers = [] if seed is None else list(seed)
    order = np.arange(len(samples))
    if shuffle:
        np.random.default_rng(numbers).shuffle(order)

    def prepare(position: int) -> NDArray[np.float32]:
        # 1 + position, since numpy takes [seed] and [seed, 0] for the same seed
        rng = np.random.default_rng([*numbers, 1 + position])
        return transform(store.get(samples.pictures[position]), rng)

    with closing(in_order(prepare, order.tolist(), workers, ahead=BATCHES_AHEAD * batch_size)) as images:
        for start in range(0, len(order), batch_size):
            stacked = np.stack(list(islice(images, batch_size)))  # (B, 3, S, S)
            chosen = [targets[position] for position in order[start : start + batch_size]]
            yield torch.from_numpy(stacked), torch.tensor(chosen, dtype=torch.int64)
