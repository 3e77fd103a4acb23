"""Feeding a network: labelled pictures become batches as its backbone expects them, augmented for training or plain."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor

from caprompt.backbones.constants import CIFAR100, IMAGENET_MEAN, IMAGENET_STD, UNCHANGED
from caprompt.backbones.weights import Backbone
from caprompt.data.gpu_cache import GPUImageCache
from caprompt.data.image_cache import ImageCache
from caprompt.data.loader import batches, cached_batches, streamed_batches
from caprompt.data.sources import Samples
from caprompt.data.transforms import Color, EvalTransform, TrainTransform
from caprompt.methods.base import Batches
from caprompt.methods.options import Options
from caprompt.utils.random import derive_seed

__all__ = ["InputPipeline", "RepeatableBatches"]


DECODE_FACTOR = 4  # photos are kept at most this many times as large as the network's input


class RepeatableBatches:
    """Batches that can be gone through more than once."""

    def __init__(self, start: Callable[[], Batches]) -> None:
        self.start = start

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        return iter(self.start())


class InputPipeline:
    """Makes batches for one backbone. It lives for one call; the decoded pictures it keeps are gone with it.

    On a GPU pictures are cropped, resized and coloured there, many at once (`batched`); else by Pillow in threads.
    """

    def __init__(
        self, backbone: Backbone, device: torch.device, budget_bytes: int = 2 * 1024**3, batched: bool | None = None
    ) -> None:
        self.backbone = backbone
        self.device = device
        self.batched = device.type != "cpu" if batched is None else batched
        self.store = ImageCache(budget_bytes, shrink_to=DECODE_FACTOR * backbone.config.image_size)

    def mean_and_std(self, options: Options) -> tuple[Color, Color]:
        """What pictures are normalised with."""
        known = {"none": UNCHANGED, "cifar100": CIFAR100, "imagenet": (IMAGENET_MEAN, IMAGENET_STD)}
        return known.get(options.normalise, (self.backbone.mean, self.backbone.std))

    def plain(self, samples: Samples, targets: Sequence[int], options: Options, batch_size: int = 64) -> Batches:
        """Every picture once, in order, as at the test."""
        size = self.backbone.config.image_size
        transform = EvalTransform(size, *self.mean_and_std(options), resize=round(size / options.test_crop))
        if self.batched:
            return streamed_batches(samples, targets, transform, self.store, batch_size, device=self.device)
        return batches(samples, targets, transform, self.store, batch_size, seed=None, shuffle=False)

    def augmented(self, samples: Samples, targets: Sequence[int], options: Options, seed: int) -> Callable[[int], Batches]:
        """A function from the epoch's number to its shuffled, augmented batches; the same number gives the same batches."""
        transform = TrainTransform(
            self.backbone.config.image_size,
            *self.mean_and_std(options),
            crop_scale=options.crop_scale,
            flip=options.flip,
            brightness=options.brightness,
        )

        bank = GPUImageCache(map(self.store.get, samples.pictures), self.device) if self.batched else None

        def epoch_batches(epoch: int) -> Batches:
            chance = [derive_seed(seed, "epoch", epoch)]
            if bank is not None:
                return cached_batches(bank, targets, transform, options.batch_size, seed=chance)
            return batches(samples, targets, transform, self.store, options.batch_size, seed=chance, shuffle=True)

        return epoch_batches
