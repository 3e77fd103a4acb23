from __future__ import annotations

import threading
from pathlib import Path

import numpy as np
import pytest
import torch

from caprompt.data.gpu_cache import GPUImageCache
from caprompt.data.image_cache import ImageCache
from caprompt.data.loader import batches, cached_batches, streamed_batches
from caprompt.data.samples import Samples
from caprompt.data.sources import read_source
from caprompt.data.transforms import EvalTransform, TrainTransform, render
from caprompt.errors import DataError

MEAN, STD = (0.5, 0.5, 0.5), (0.5, 0.5, 0.5)
TRAIN = TrainTransform(8, MEAN, STD, brightness=0.2)
EVAL = EvalTransform(8, MEAN, STD)


@pytest.fixture
def samples(photos: Path) -> Samples:
    return read_source(photos)


def gathered(samples: Samples, **options) -> tuple[torch.Tensor, torch.Tensor]:
    settings = {"transform": TRAIN, "store": ImageCache(), "batch_size": 5, "seed": [1, 2], "shuffle": True} | options
    images, targets = zip(*batches(samples, range(len(samples)), **settings), strict=True)
    return torch.cat(images), torch.cat(targets)


def test_batches_in_order(samples: Samples) -> None:
    store = ImageCache()
    found = list(batches(samples, range(12), EVAL, store, 5, seed=None, shuffle=False))
    assert [tuple(images.shape) for images, _ in found] == [(5, 3, 8, 8), (5, 3, 8, 8), (2, 3, 8, 8)]
    assert found[0][0].dtype == torch.float32
    assert found[0][1].dtype == torch.int64
    assert torch.cat([targets for _, targets in found]).tolist() == list(range(12))
    last = store.get(samples.pictures[11])
    np.testing.assert_array_equal(found[2][0][1].numpy(), render(last, EVAL.view(*last.shape[1::-1]), EVAL))


@pytest.mark.parametrize("workers", [0, 1, 5])
def test_same_seed_same_bits_whatever_the_workers(samples: Samples, workers: int) -> None:
    images, targets = gathered(samples)
    images_again, targets_again = gathered(samples, workers=workers)
    assert torch.equal(images, images_again)
    assert torch.equal(targets, targets_again)


def test_shuffling_permutes_and_follows_the_seed(samples: Samples) -> None:
    _, first = gathered(samples)
    _, other = gathered(samples, seed=[1, 3])
    assert sorted(first.tolist()) == list(range(12))
    assert first.tolist() != list(range(12))
    assert first.tolist() != other.tolist()


def test_augmentation_belongs_to_the_picture_not_to_its_turn(samples: Samples) -> None:
    images, targets = gathered(samples)
    ordered, _ = gathered(samples, shuffle=False, batch_size=3)
    assert torch.equal(images, ordered[targets])
    other_seed, _ = gathered(samples, shuffle=False, seed=[9])
    assert not torch.equal(ordered, other_seed)


def test_equal_pictures_are_augmented_differently(noise) -> None:
    images, _ = gathered(Samples((noise(0, 40, 40),) * 4, ("a",) * 4))
    assert len({image.numpy().tobytes() for image in images}) == 4


def test_a_second_epoch_decodes_nothing(samples: Samples) -> None:
    store = ImageCache()
    gathered(samples, store=store)
    gathered(samples, store=store, seed=[1, 3])
    assert store.decoded == 12


def test_stopping_early_leaves_no_threads(samples: Samples) -> None:
    before = threading.active_count()
    stream = batches(samples, range(12), TRAIN, ImageCache(), 2, seed=[0], shuffle=True, workers=3)
    next(stream)
    assert threading.active_count() > before
    stream.close()
    assert threading.active_count() == before


def test_errors_of_a_picture_come_out(samples: Samples, photos: Path) -> None:
    (photos / "class2" / "3.png").unlink()
    with pytest.raises(DataError, match=r"3\.png"):
        gathered(samples)


def test_every_path_gives_the_same_batches(samples: Samples) -> None:
    """Pillow one by one, or batched operations from a bank or a stream: the same order, targets and views."""
    store, cpu = ImageCache(), torch.device("cpu")
    targets = range(12)
    pairs = [
        (
            batches(samples, targets, TRAIN, store, 5, seed=[4], shuffle=True),
            cached_batches(GPUImageCache(map(store.get, samples.pictures), cpu), targets, TRAIN, 5, seed=[4]),
        ),
        (
            batches(samples, targets, EVAL, store, 5, seed=None, shuffle=False),
            streamed_batches(samples, targets, EVAL, store, 5, device=cpu),
        ),
    ]
    for pillow, batched in pairs:
        for (images, labels), (images_again, labels_again) in zip(pillow, batched, strict=True):
            assert torch.equal(labels, labels_again)
            assert (images - images_again).abs().max() < 0.05  # a few of 255 levels: noise is harder than a photograph


def test_no_samples_no_batches() -> None:
    assert list(batches(Samples((), ()), [], EVAL, ImageCache(), 4, seed=None, shuffle=False)) == []


def test_misuse_is_refused(samples: Samples) -> None:
    with pytest.raises(ValueError, match="12 samples but 1 targets"):
        next(batches(samples, [0], EVAL, ImageCache(), 4, seed=None, shuffle=False))
    with pytest.raises(ValueError, match="needs a seed"):
        next(batches(samples, range(12), EVAL, ImageCache(), 4, seed=None, shuffle=True))
