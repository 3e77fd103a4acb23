from __future__ import annotations

import math
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from thread_group import ThreadGroup, run_in_threads

from caprompt.data import loader, streaming
from caprompt.data.gpu_cache import GPUImageCache
from caprompt.data.gpu_transforms import render_batch
from caprompt.data.image_cache import ImageCache
from caprompt.data.loader import iter_batches, iter_cached_batches
from caprompt.data.samples import Samples
from caprompt.data.sources import read_source
from caprompt.data.streaming import iter_streamed_batches
from caprompt.data.transforms import EvalTransform, TrainTransform, render
from caprompt.errors import DataError

MEAN, STD = (0.5, 0.5, 0.5), (0.5, 0.5, 0.5)
TRAIN = TrainTransform(8, MEAN, STD, brightness=0.2)
EVAL = EvalTransform(8, MEAN, STD)


@pytest.fixture
def samples(photos: Path) -> Samples:
    return read_source(photos)


def collect(samples: Samples, **options) -> tuple[torch.Tensor, torch.Tensor]:
    settings = {"transform": TRAIN, "cache": ImageCache(), "batch_size": 5, "seed": [1, 2], "shuffle": True} | options
    images, targets = zip(*iter_batches(samples, range(len(samples)), **settings), strict=True)
    return torch.cat(images), torch.cat(targets)


def test_batches_in_order(samples: Samples) -> None:
    cache = ImageCache()
    result = list(iter_batches(samples, range(12), EVAL, cache, 5, seed=None, shuffle=False))
    assert [tuple(images.shape) for images, _ in result] == [(5, 3, 8, 8), (5, 3, 8, 8), (2, 3, 8, 8)]
    assert result[0][0].dtype == torch.float32
    assert result[0][1].dtype == torch.int64
    assert torch.cat([targets for _, targets in result]).tolist() == list(range(12))
    last = cache.get(samples.images[11])
    np.testing.assert_array_equal(result[2][0][1].numpy(), render(last, EVAL.make_view(*last.shape[1::-1]), EVAL))


@pytest.mark.parametrize("workers", [0, 1, 5])
def test_same_seed_gives_same_bits_with_any_number_of_workers(samples: Samples, workers: int) -> None:
    images, targets = collect(samples)
    images_again, targets_again = collect(samples, workers=workers)
    assert torch.equal(images, images_again)
    assert torch.equal(targets, targets_again)


def test_shuffling_permutes_by_the_seed(samples: Samples) -> None:
    _, first = collect(samples)
    _, other = collect(samples, seed=[1, 3])
    assert sorted(first.tolist()) == list(range(12))
    assert first.tolist() != list(range(12))
    assert first.tolist() != other.tolist()


def test_augmentation_depends_on_the_index_not_on_the_order(samples: Samples) -> None:
    images, targets = collect(samples)
    ordered, _ = collect(samples, shuffle=False, batch_size=3)
    assert torch.equal(images, ordered[targets])
    other_seed, _ = collect(samples, shuffle=False, seed=[9])
    assert not torch.equal(ordered, other_seed)


def test_equal_images_are_augmented_differently(noise) -> None:
    images, _ = collect(Samples((noise(0, 40, 40),) * 4, ("a",) * 4))
    assert len({image.numpy().tobytes() for image in images}) == 4


def test_second_epoch_decodes_nothing(samples: Samples) -> None:
    cache = ImageCache()
    collect(samples, cache=cache)
    collect(samples, cache=cache, seed=[1, 3])
    assert cache.num_decoded == 12


def test_stopping_early_leaves_no_threads(samples: Samples) -> None:
    before = threading.active_count()
    stream = iter_batches(samples, range(12), TRAIN, ImageCache(), 2, seed=[0], shuffle=True, workers=3)
    next(stream)
    assert threading.active_count() > before
    stream.close()
    assert threading.active_count() == before


def test_decoding_errors_propagate(samples: Samples, photos: Path) -> None:
    (photos / "class2" / "3.png").unlink()
    with pytest.raises(DataError, match=r"3\.png"):
        collect(samples)


def test_all_iterators_yield_the_same_batches(samples: Samples) -> None:
    """Pillow, cached and streamed iterators yield the same order, targets and views."""
    cache, cpu = ImageCache(), torch.device("cpu")
    targets = range(12)
    pairs = [
        (
            iter_batches(samples, targets, TRAIN, cache, 5, seed=[4], shuffle=True),
            iter_cached_batches(GPUImageCache(map(cache.get, samples.images), cpu), targets, TRAIN, 5, seed=[4]),
        ),
        (
            iter_batches(samples, targets, EVAL, cache, 5, seed=None, shuffle=False),
            iter_streamed_batches(samples, targets, EVAL, cache, 5, device=cpu),
        ),
    ]
    for pillow, batched in pairs:
        for (images, labels), (images_again, labels_again) in zip(pillow, batched, strict=True):
            assert torch.equal(labels, labels_again)
            assert (images - images_again).abs().max() < 0.05  # a few of 255 levels, since the images are noise


@pytest.mark.parametrize("batch_size", [1, 2, 3, 5, 7, 12, 20])
@pytest.mark.parametrize("chunk", [1, 4, 6, 100])
def test_batches_that_are_rendered_together_are_the_same(
    samples: Samples, monkeypatch: pytest.MonkeyPatch, batch_size: int, chunk: int
) -> None:
    cache = GPUImageCache(map(ImageCache().get, samples.images), torch.device("cpu"))
    targets = [10 * number for number in range(12)]
    sizes: list[int] = []

    def count_images(pixels: torch.Tensor, *arguments: Any) -> torch.Tensor:
        sizes.append(len(pixels))
        return render_batch(pixels, *arguments)

    monkeypatch.setattr(loader, "render_batch", count_images)
    monkeypatch.setattr(loader, "RENDER_CHUNK", 1)
    alone = list(iter_cached_batches(cache, targets, TRAIN, batch_size, seed=[4]))
    assert max(sizes) == min(batch_size, 12)
    sizes.clear()
    monkeypatch.setattr(loader, "RENDER_CHUNK", chunk)
    together = list(iter_cached_batches(cache, targets, TRAIN, batch_size, seed=[4]))
    assert [len(images) for images, _ in together] == [len(images) for images, _ in alone]
    for (images, labels), (images_alone, labels_alone) in zip(together, alone, strict=True):
        assert torch.equal(labels, labels_alone)
        torch.testing.assert_close(images, images_alone, rtol=0, atol=1e-6)
    assert max(sizes) <= max(chunk, batch_size)
    assert len(sizes) == math.ceil(12 / (batch_size * max(1, chunk // batch_size)))


def test_no_samples_yield_no_batches() -> None:
    assert list(iter_batches(Samples((), ()), [], EVAL, ImageCache(), 4, seed=None, shuffle=False)) == []


def test_invalid_arguments_raise(samples: Samples) -> None:
    with pytest.raises(ValueError, match="12 samples but 1 targets"):
        next(iter_batches(samples, [0], EVAL, ImageCache(), 4, seed=None, shuffle=False))
    with pytest.raises(ValueError, match="needs a seed"):
        next(iter_batches(samples, range(12), EVAL, ImageCache(), 4, seed=None, shuffle=True))


def test_a_long_image_does_not_pad_a_whole_batch(noise, monkeypatch: pytest.MonkeyPatch) -> None:
    """One image of 10 x 2000 and one of 2000 x 10 would pad every image of the batch to 2000 x 2000."""
    shapes = [(10, 12), (10, 2000), (2000, 10), (12, 10)]
    samples = Samples(tuple(noise(seed, *shape) for seed, shape in enumerate(shapes)), ("a",) * 4)
    cache, cpu, sizes = ImageCache(), torch.device("cpu"), []

    def record_size(pixels: torch.Tensor, *arguments: Any) -> torch.Tensor:
        sizes.append(pixels.numel())
        return render_batch(pixels, *arguments)

    for module in (loader, streaming):
        monkeypatch.setattr(module, "render_batch", record_size)
        monkeypatch.setattr(module, "RENDER_BYTES", 100_000)
    ((streamed, _),) = iter_streamed_batches(samples, range(4), EVAL, cache, 4, device=cpu)
    ((pillow, _),) = iter_batches(samples, range(4), EVAL, cache, 4, seed=None, shuffle=False)
    assert sum(sizes) < 20_000
    assert (streamed - pillow).abs().max() < 0.05
    sizes.clear()
    gpu_cache = GPUImageCache(map(cache.get, samples.images), cpu)
    ((cached, _),) = iter_cached_batches(gpu_cache, range(4), TRAIN, 4, seed=[4])
    ((pillow, _),) = iter_batches(samples, range(4), TRAIN, cache, 4, seed=[4], shuffle=True)
    assert max(sizes) <= 100_000
    assert (cached - pillow).abs().max() < 0.05


@pytest.mark.parametrize("size", [1, 2, 4])
@pytest.mark.parametrize("on_device", [False, True], ids=["Pillow", "batched"])
def test_processes_share_every_batch_and_see_the_same_views(samples: Samples, size: int, on_device: bool) -> None:
    """Twelve images in batches of five: with four processes, each gets all of the last two."""
    cache = GPUImageCache(map(ImageCache().get, samples.images), torch.device("cpu"))

    def iterate(**options: Any) -> list[tuple[torch.Tensor, torch.Tensor]]:
        if on_device:
            return list(iter_cached_batches(cache, range(12), TRAIN, 5, seed=[1, 2], **options))
        return list(iter_batches(samples, range(12), TRAIN, ImageCache(), 5, seed=[1, 2], shuffle=True, **options))

    def share(group: ThreadGroup) -> list[tuple[torch.Tensor, torch.Tensor]]:
        return iterate(communicator=group)

    alone, shares = iterate(), run_in_threads(size, share)
    for number, (images, targets) in enumerate(alone):
        own = [part[number] for part in shares]
        if len(targets) < size:
            assert all(torch.equal(labels, targets) for _, labels in own)
            continue
        assert sorted(torch.cat([labels for _, labels in own]).tolist()) == sorted(targets.tolist())
        for parts, labels in own:
            rows = [targets.tolist().index(label) for label in labels.tolist()]
            torch.testing.assert_close(parts, images[rows], rtol=0, atol=1e-6)
