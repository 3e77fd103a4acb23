"""Input pipeline: labeled images become batches as a backbone expects them, augmented for training or plain for evaluation."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from typing import TypeAlias

import torch
from torch import Tensor

from caprompt.backbones.constants import NORMALIZATIONS
from caprompt.backbones.weights import Backbone
from caprompt.data.gpu_cache import GPUImageCache
from caprompt.data.image_cache import ImageCache
from caprompt.data.images import ImageInput, Pixels
from caprompt.data.loader import iter_batches, iter_cached_batches, iter_plain_batches
from caprompt.data.samples import Samples
from caprompt.data.streaming import iter_streamed_batches, iter_streamed_images
from caprompt.data.transforms import Color, EvalTransform, TrainTransform
from caprompt.data.validation import map_in_threads
from caprompt.methods.base import Batches
from caprompt.methods.options import Options
from caprompt.utils.communication import get_communicator
from caprompt.utils.random import derive_seed

__all__ = ["DECODE_FACTOR", "InputPipeline", "RepeatableBatches"]

DECODE_FACTOR = 4  # photos are stored at most this many times as large as the network's input
MAX_KEPT_SHARE = 0.1  # of the free memory of a GPU, for images that are ready for the network
CACHE_BYTES = 2 * 1024**3  # of decoded images cached in memory

OnProgress: TypeAlias = Callable[[int, int], None]  # called with the number of images that are done, and that of all


class RepeatableBatches:
    """Batches that can be iterated over more than once; those of the first time are kept if `keep`.

    `start` starts an iteration, over images with the central crop at prediction (None) or with one of another share.
    `measure_short_side` measures the median short side of the images as they are stored, in pixels.
    """

    def __init__(
        self,
        start: Callable[[float | None], Batches],
        measure_short_side: Callable[[], int],
        keep: bool = False,
        share: float | None = None,
    ) -> None:
        self.start = start
        self.measure_short_side = measure_short_side
        self.keep = keep
        self.share = share
        self.kept: list[tuple[Tensor, Tensor]] | None = None

    def crop(self, share: float) -> RepeatableBatches:
        """Return the same batches, with a crop of this share of the short side of each image; they are not kept."""
        return RepeatableBatches(self.start, self.measure_short_side, share=share)

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        if self.kept is not None:
            return iter(self.kept)
        return self._start_and_keep() if self.keep else iter(self.start(self.share))

    def _start_and_keep(self) -> Iterator[tuple[Tensor, Tensor]]:
        batches = []
        for batch in self.start(self.share):
            batches.append(batch)
            yield batch
        self.kept = batches


class InputPipeline:
    """Makes batches for one backbone. It lives for one call, and so does its cache of decoded images.

    On a GPU, images are cropped, resized and normalized there, many at once (`batched`); else by Pillow in threads.
    """

    def __init__(
        self, backbone: Backbone, device: torch.device, cache_bytes: int = CACHE_BYTES, batched: bool | None = None
    ) -> None:
        self.backbone = backbone
        self.device = device
        self.batched = device.type != "cpu" if batched is None else batched
        self.cache = ImageCache(cache_bytes, shrink_to=DECODE_FACTOR * backbone.config.image_size)
        self._uploaded: tuple[Samples, GPUImageCache] | None = None

    def mean_and_std(self, options: Options) -> tuple[Color, Color]:
        """Return the mean and standard deviation that images are normalized with."""
        return NORMALIZATIONS.get(options.normalise, (self.backbone.mean, self.backbone.std))

    def make_eval_transform(self, options: Options) -> EvalTransform:
        """Return the transform of decoded images at test time."""
        size = self.backbone.config.image_size
        return EvalTransform(size, *self.mean_and_std(options), resize=round(size / options.eval_crop))

    def eval_batches(
        self, samples: Samples, targets: Sequence[int], options: Options, batch_size: int = 64, *, short_ends: bool = False
    ) -> Batches:
        """Yield every image once, in order, resized and cropped as at test time; see `iter_streamed_batches` for `short_ends`."""
        transform = self.make_eval_transform(options)
        if self.batched:
            return iter_streamed_batches(
                samples, targets, transform, self.cache, batch_size, device=self.device, short_ends=short_ends
            )
        return iter_batches(samples, targets, transform, self.cache, batch_size, seed=None, shuffle=False)

    def eval_images(
        self, images: Sequence[ImageInput], options: Options, batch_size: int = 64, *, short_ends: bool = False
    ) -> Iterator[Tensor]:
        """Yield the images of `eval_batches` where they have no labels."""
        if self.batched:
            transform = self.make_eval_transform(options)
            return iter_streamed_images(images, transform, self.cache, batch_size, device=self.device, short_ends=short_ends)
        unlabeled = Samples(tuple(images), ("unlabeled",) * len(images))
        return (batch for batch, _ in self.eval_batches(unlabeled, [0] * len(images), options, batch_size))

    def upload(self, samples: Samples, on_progress: OnProgress | None = None) -> GPUImageCache | None:
        """Upload decoded images to the GPU, once however often it is asked for; None where images are transformed on the CPU.

        `on_progress(done, total)` is called after each image is decoded.
        """
        if not self.batched:
            return None
        if self._uploaded is None or not _have_same_images(self._uploaded[0], samples):
            self._uploaded = None  # before others take its memory
            self._uploaded = samples, GPUImageCache(self._decode_all(samples, on_progress), self.device)
        return self._uploaded[1]

    def eval_part(
        self, samples: Samples, positions: Sequence[int], targets: Sequence[int], options: Options, batch_size: int
    ) -> Batches:
        """Yield some of the samples and their targets as `eval_batches` does, from the GPU if all of them were uploaded."""
        uploaded = self._uploaded
        if uploaded is not None and uploaded[1].resident is not None and _have_same_images(uploaded[0], samples):
            return iter_plain_batches(uploaded[1], positions, targets, self.make_eval_transform(options), batch_size)
        return self.eval_batches(samples.select(positions), targets, options, batch_size)

    def can_keep(self, num_images: int) -> bool:
        """Return whether so many images, as `eval_batches` yields them, may stay in the memory of the GPU."""
        if self.device.type != "cuda":
            return False
        num_bytes = 12 * num_images * self.backbone.config.image_size**2  # three float32 per pixel
        return num_bytes < MAX_KEPT_SHARE * torch.cuda.mem_get_info(self.device)[0]

    def train_batches(
        self, samples: Samples, targets: Sequence[int], options: Options, seed: int, batch_size: int
    ) -> Callable[[int], Batches]:
        """Return a function from an epoch's number to its shuffled, augmented batches; the same number gives the same batches.

        Of several processes that learn together, each gets its share of every batch.
        """
        communicator = get_communicator()
        transform = TrainTransform(
            self.backbone.config.image_size,
            *self.mean_and_std(options),
            crop_scale=options.crop_scale,
            flip=options.flip,
            brightness=options.brightness,
        )

        def epoch_batches(epoch: int) -> Batches:
            epoch_seed, image_cache = [derive_seed(seed, "epoch", epoch)], self.upload(samples)
            if image_cache is not None:
                return iter_cached_batches(image_cache, targets, transform, batch_size, seed=epoch_seed, communicator=communicator)
            return iter_batches(
                samples, targets, transform, self.cache, batch_size, seed=epoch_seed, shuffle=True, communicator=communicator
            )

        return epoch_batches

    def _decode_all(self, samples: Samples, on_progress: OnProgress | None) -> Iterator[Pixels]:
        """Yield the pixels of all images in their order, decoded in threads; those in the cache are not decoded again."""
        with closing(map_in_threads(lambda index: self.cache.get(samples.images[index]), len(samples))) as images:
            for index, pixels in enumerate(images):
                if on_progress is not None:
                    on_progress(index + 1, len(samples))
                yield pixels


def _have_same_images(one: Samples, other: Samples) -> bool:
    """Return whether two samples have the same images in the same order, as the very same objects."""
    return one is other or (len(one) == len(other) and all(map(operator.is_, one.images, other.images)))
