"""Batched prediction: fixed batch sizes, captured as CUDA graphs on a GPU, and the one loop that runs a model over samples.

An output depends on its own image only, to the last bit. On a CPU, images are predicted one by one (`separate_images`). On a GPU,
products and sums are computed by kernels that treat a row alike in every batch (`backbones.batch_invariance`), and a batch that is
too short is padded with copies of its last image, whose outputs are dropped. Where those kernels cannot be used, which need Triton
and know nothing of eight bits, a batch is one image.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TypeVar

import torch
from torch import Tensor

from caprompt.backbones.batch_invariance import BATCH_SIZES, BatchInvariant
from caprompt.backbones.fp8 import uses_fp8
from caprompt.data import Samples
from caprompt.engine.inputs import InputPipeline
from caprompt.engine.separate_images import predict_separately
from caprompt.methods.base import Method, MethodOutput
from caprompt.methods.options import Options
from caprompt.protocols import group_for_batches, is_released
from caprompt.utils.cuda_graphs import CapturedFunction, capture
from caprompt.utils.devices import has_triton

__all__ = ["Predictor", "PredictorCache", "can_batch", "choose_batch_size", "join_outputs", "map_samples", "predict_samples"]

Predict = Callable[[Tensor, Tensor | None], MethodOutput]  # images and, with `give_task`, their true tasks
Result = TypeVar("Result")

DEFAULT_BATCH_SIZE = {"cpu": 64, "cuda": 256}


def map_samples(
    function: Callable[[Tensor, Tensor], Result],
    pipeline: InputPipeline,
    samples: Samples,
    targets: Sequence[int],
    options: Options,
    batch_size: int,
    groups: Sequence[int] | None = None,
    *,
    short_ends: bool = False,
) -> tuple[list[Result], list[int]]:
    """Apply a function of images (B, 3, S, S) and targets (B,) to samples, batch by batch, without augmentation.

    `groups` has an integer for each sample: a protocol may require that no batch mixes two groups. Return the results, and the
    order of the samples behind them.
    """
    everything = [(list(range(len(samples))), batch_size)]
    parts = everything if groups is None else group_for_batches(options, groups, batch_size)
    results = [
        function(images, own_targets)
        for positions, size in parts
        for images, own_targets in pipeline.eval_batches(
            samples.select(positions), [targets[position] for position in positions], options, size, short_ends=short_ends
        )
    ]
    return results, [position for positions, _ in parts for position in positions]


def predict_samples(
    predict: Predict,
    pipeline: InputPipeline,
    samples: Samples,
    options: Options,
    batch_size: int,
    *,
    tasks: Sequence[int] | None = None,
    give_task: bool = False,
    short_ends: bool = False,
) -> MethodOutput:
    """Run a model over N samples and return its output in their order.

    `tasks` are the samples' true tasks: a protocol may require batches of one task, and `give_task` passes them to the model.
    """

    def predict_batch(images: Tensor, own_tasks: Tensor) -> MethodOutput:
        return predict(images, own_tasks if give_task else None)

    targets = [0] * len(samples) if tasks is None else tasks
    outputs, order = map_samples(predict_batch, pipeline, samples, targets, options, batch_size, tasks, short_ends=short_ends)
    joined = join_outputs(outputs)
    if order == list(range(len(samples))):
        return joined
    rows = torch.tensor(order).argsort().to(joined.logits.device)  # the output row of each sample
    return MethodOutput(*(tensor[rows] for tensor in _unpack(joined)))


class Predictor:
    """Predicts batches of at most `size` images. The largest size has graphs for half and for a quarter of it as well."""

    def __init__(self, method: Method, size: int) -> None:
        self.method = method
        self.device = method.device
        self.size = size
        if self.device.type != "cpu" and not is_released(method.options):
            self.size = round_up_batch_size(size) if can_batch(method) else 1
        is_largest = self.device.type != "cpu" and self.size == BATCH_SIZES[-1] and not is_released(method.options)
        sizes = (self.size // 4, self.size // 2, self.size) if is_largest else (self.size,)
        self.captured = {each: capture(partial(_predict_tensors, method), self.device) for each in sizes}

    def __call__(self, images: Tensor, true_tasks: Tensor | None = None) -> MethodOutput:
        """Predict images (B, 3, S, S), with their true tasks (B,) if these are passed."""
        released = is_released(self.method.options)
        if self.device.type == "cpu" and not released:
            return predict_separately(self.method, images, true_tasks)
        if released or len(images) <= self.size:
            return self._predict_batch(images, true_tasks)
        return join_outputs([self._predict_batch(part, tasks) for part, tasks in self._split(images, true_tasks)])

    @property
    def has_short_batches(self) -> bool:
        """Whether shorter batches at both ends of a call save time: not in its first call, which captures the largest graph."""
        largest = self.captured[self.size]
        return len(self.captured) > 1 and isinstance(largest, CapturedFunction) and largest.graph is not None

    def _split(self, images: Tensor, true_tasks: Tensor | None) -> Iterator[tuple[Tensor, Tensor | None]]:
        """Yield batches of images and their true tasks."""
        for start in range(0, len(images), self.size):
            part = slice(start, start + self.size)
            yield images[part], None if true_tasks is None else true_tasks[part]

    def _predict_batch(self, images: Tensor, true_tasks: Tensor | None) -> MethodOutput:
        """Predict at most `size` images on a GPU, or any number if batches matter."""
        if true_tasks is not None or not self.method.can_capture_predict:
            return MethodOutput(*_predict_tensors(self.method, images, true_tasks))
        count = len(images)
        size = min((each for each in self.captured if each >= count), default=self.size)
        if count >= size:
            return MethodOutput(*[tensor.clone() for tensor in self.captured[size](images)])
        padded = torch.cat([images, images[-1:].expand(size - count, -1, -1, -1)])
        return MethodOutput(*[tensor[:count].clone() for tensor in self.captured[size](padded)])


class PredictorCache:
    """Predictors by batch size and options, so that on a GPU a later call replays a graph that an earlier one captured."""

    def __init__(self) -> None:
        self.predictors: dict[tuple[int, Options], Predictor] = {}

    def get(self, method: Method, size: int) -> Predictor:
        """Return the predictor of a method for batches of this size."""
        key = (size, method.options)
        predictor = self.predictors.get(key)  # the hash of options takes some time
        if predictor is None:
            predictor = self.predictors[key] = Predictor(method, size)
        return predictor

    def clear(self) -> None:
        """Drop every captured graph, because the model has changed."""
        self.predictors.clear()


def can_batch(method: Method) -> bool:
    """Return whether the outputs of a method do not depend on the batch; on a CPU, images are predicted separately anyway."""
    return method.device.type == "cpu" or (has_triton(method.device) and not uses_fp8(method.vit))


def choose_batch_size(num_images: int, requested: int | None, device: torch.device) -> int:
    """Return how many images to predict at once. On a GPU, where every size is captured, a few sizes serve all numbers.

    >>> cpu, gpu = torch.device("cpu"), torch.device("cuda")
    >>> choose_batch_size(1000, None, cpu), choose_batch_size(3, None, cpu), choose_batch_size(1000, 7, cpu)
    (64, 3, 7)
    >>> [choose_batch_size(count, None, gpu) for count in (3, 33, 130, 1000)], choose_batch_size(90, 7, gpu)
    ([4, 64, 160, 256], 8)
    """
    size = max(1, min(num_images, requested or DEFAULT_BATCH_SIZE.get(device.type, DEFAULT_BATCH_SIZE["cpu"])))
    return size if device.type == "cpu" else round_up_batch_size(size)


def round_up_batch_size(size: int) -> int:
    """Return the least of `BATCH_SIZES` that is not below a size, or the largest.

    >>> [round_up_batch_size(size) for size in (1, 7, 33, 1000)]
    [1, 8, 64, 256]
    """
    return min((each for each in BATCH_SIZES if each >= size), default=BATCH_SIZES[-1])


def _predict_tensors(method: Method, images: Tensor, true_tasks: Tensor | None = None) -> tuple[Tensor, Tensor, Tensor]:
    """Predict on a GPU, with the same bits in every batch unless the protocol is that batches matter."""
    if is_released(method.options) or not has_triton(images.device):
        return _unpack(method.predict(images, true_tasks))
    # Where images leave the batch on the way, their number is not known to the operations.
    num_images = len(images) if true_tasks is None and method.can_capture_predict else None
    with BatchInvariant(num_images):
        return _unpack(method.predict(images, true_tasks))


def join_outputs(outputs: Sequence[MethodOutput]) -> MethodOutput:
    """Return the outputs of several batches as one."""
    if len(outputs) == 1:
        return outputs[0]
    return MethodOutput(*(torch.cat(tensors) for tensors in zip(*map(_unpack, outputs), strict=True)))


def _unpack(output: MethodOutput) -> tuple[Tensor, Tensor, Tensor]:
    return output.logits, output.task_weights, output.passes
