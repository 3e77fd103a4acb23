from __future__ import annotations

import numpy as np
import pytest
import torch

from caprompt.data.gpu_cache import GPUImageCache, stacked
from caprompt.data.images import Pixels

CPU = torch.device("cpu")


@pytest.fixture
def pictures() -> list[Pixels]:
    rng = np.random.default_rng(0)
    return [rng.integers(0, 256, (height, width, 3)).astype(np.uint8) for height, width in [(4, 6), (7, 3), (5, 5)]]


@pytest.mark.parametrize("in_memory", [10**6, 10], ids=["in memory", "in a file"])
def test_pictures_come_back_padded_to_the_largest(pictures: list[Pixels], in_memory: int) -> None:
    bank = GPUImageCache(pictures, CPU, in_memory)
    assert len(bank) == 3
    assert bank.shape(1) == (7, 3)
    taken = bank.take(np.array([2, 0]))
    assert taken.shape == (2, 5, 6, 3)
    np.testing.assert_array_equal(taken[0, :5, :5], pictures[2])
    np.testing.assert_array_equal(taken[1, :4, :6], pictures[0])
    assert isinstance(bank.host, np.memmap) == (in_memory == 10)


def test_resident_pictures_are_gathered_alike(pictures: list[Pixels]) -> None:
    bank = GPUImageCache(pictures, CPU)
    bank.resident = torch.from_numpy(bank.host)
    taken = bank.take(np.array([1, 2, 1]))
    assert taken.shape == (3, 7, 5, 3)
    for row, position in enumerate((1, 2, 1)):
        height, width = bank.shape(position)
        np.testing.assert_array_equal(taken[row, :height, :width], pictures[position])


def test_an_empty_bank() -> None:
    assert len(GPUImageCache([], CPU)) == 0


def test_stacking(pictures: list[Pixels]) -> None:
    batch = stacked(pictures, CPU)
    assert batch.dtype == torch.uint8
    assert batch.shape == (3, 7, 6, 3)
    assert not batch[0, 4:].any()
