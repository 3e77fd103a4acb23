from __future__ import annotations

import numpy as np
import pytest
import torch

from caprompt.data.gpu_cache import GPUImageCache, join_padded, split_by_padded_bytes, stack_padded, upload_concatenated
from caprompt.data.images import Pixels

CPU = torch.device("cpu")


@pytest.fixture
def images() -> list[Pixels]:
    rng = np.random.default_rng(0)
    return [rng.integers(0, 256, (height, width, 3)).astype(np.uint8) for height, width in [(4, 6), (7, 3), (5, 5)]]


@pytest.mark.parametrize("max_host_bytes", [10**6, 10], ids=["in RAM", "in a file"])
def test_images_are_padded_to_the_largest(images: list[Pixels], max_host_bytes: int) -> None:
    cache = GPUImageCache(images, CPU, max_host_bytes)
    assert len(cache) == 3
    assert cache.shape(1) == (7, 3)
    taken = cache.take(np.array([2, 0]))
    assert taken.shape == (2, 5, 6, 3)
    np.testing.assert_array_equal(taken[0, :5, :5], images[2])
    np.testing.assert_array_equal(taken[1, :4, :6], images[0])
    assert isinstance(cache.host, np.memmap) == (max_host_bytes == 10)


def test_resident_images_of_one_shape_are_gathered_whole() -> None:
    images = list(np.random.default_rng(0).integers(0, 256, (4, 5, 6, 3)).astype(np.uint8))
    cache = GPUImageCache(images, CPU)
    cache.resident = torch.from_numpy(cache.host)
    assert cache.is_uniform
    np.testing.assert_array_equal(cache.take(np.array([3, 0, 3])), np.stack([images[3], images[0], images[3]]))


def test_resident_images_are_gathered_equally(images: list[Pixels]) -> None:
    cache = GPUImageCache(images, CPU)
    cache.resident = torch.from_numpy(cache.host)
    taken = cache.take(np.array([1, 2, 1]))
    assert taken.shape == (3, 7, 5, 3)
    for row, position in enumerate((1, 2, 1)):
        height, width = cache.shape(position)
        np.testing.assert_array_equal(taken[row, :height, :width], images[position])


def test_empty_cache() -> None:
    assert len(GPUImageCache([], CPU)) == 0


def test_stack_padded(images: list[Pixels]) -> None:
    batch = stack_padded(images, CPU)
    assert batch.dtype == torch.uint8
    assert batch.shape == (3, 7, 6, 3)
    assert not batch[0, 4:].any()


def test_runs_of_images_are_bounded_by_their_padded_bytes() -> None:
    shapes = [(10, 10)] * 5 + [(1000, 10), (10, 1000)] + [(10, 10)] * 3  # padded together, the long ones would take 30 MB
    runs = split_by_padded_bytes(shapes, max_bytes=1000)
    assert [index for run in runs for index in range(len(shapes))[run]] == list(range(len(shapes)))
    for run in runs:
        height, width = (max(shape[axis] for shape in shapes[run]) for axis in (0, 1))
        assert len(shapes[run]) == 1 or 3 * len(shapes[run]) * height * width <= 1000
    assert len(split_by_padded_bytes(shapes, max_bytes=10**9)) == 1


def test_stacks_are_joined_as_if_all_images_were_stacked_at_once(images: list[Pixels]) -> None:
    for parts in ([images], [images[:1], images[1:]], [[each] for each in images], [images[2:], images[2:]]):
        whole = stack_padded([each for part in parts for each in part], CPU)
        assert torch.equal(join_padded([stack_padded(part, CPU) for part in parts]), whole)


@pytest.mark.parametrize("part_bytes", [1, 80, 10**6])
def test_images_are_uploaded_in_parts_while_they_come(images: list[Pixels], part_bytes: int) -> None:
    flat = np.concatenate([each.reshape(-1) for each in images])
    resident, remaining = upload_concatenated(iter(images), CPU, max_bytes=flat.nbytes + 1, part_bytes=part_bytes)
    assert resident is not None
    np.testing.assert_array_equal(resident.numpy(), flat)
    assert list(remaining) == []
    resident, remaining = upload_concatenated(iter(images), CPU, max_bytes=flat.nbytes, part_bytes=part_bytes)
    assert resident is None
    np.testing.assert_array_equal(np.concatenate(list(remaining)), flat)


def test_no_images_are_uploaded() -> None:
    resident, remaining = upload_concatenated(iter(()), CPU, max_bytes=1)
    assert resident is not None
    assert len(resident) == len(list(remaining)) == 0


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_images_on_a_gpu_are_the_same(images: list[Pixels]) -> None:
    on_gpu, on_host = GPUImageCache(iter(images), torch.device("cuda")), GPUImageCache(images, CPU)
    indices = np.array([1, 2, 0, 1])
    assert on_gpu.resident is not None
    for row, index in enumerate(indices):
        height, width = on_host.shape(int(index))
        assert torch.equal(on_gpu.take(indices)[row, :height, :width].cpu(), on_host.take(indices)[row, :height, :width])
