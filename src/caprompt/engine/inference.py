"""Batched prediction: fixed batch sizes, captured as CUDA graphs on a GPU, and the one loop that runs a model over samples.

On a CPU, images are predicted one by one (`separate_images`). On a GPU, a batch that is too short is padded with copies of its last
image, whose outputs are dropped. An output depends on its own image only, so padding and batch composition change nothing.

In half precision that needs care: a batch and a single image use different matmul kernels, which round differently in the
third digit. How far rounding moves the margin between the two most likely classes depends on the model, so it is measured on the
first images, which are predicted in float32 as well. From then on, images whose margin is so small that rounding could reverse it
are predicted again in float32.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Sequence
from functools import cached_property, partial
from typing import TypeVar

import torch
from torch import Tensor

from caprompt.backbones.fp8 import convert_from_fp8
from caprompt.backbones.vit import ViT
from caprompt.data import Samples
from caprompt.engine.inputs import InputPipeline
from caprompt.engine.separate_images import predict_separately
from caprompt.methods.base import Method, MethodOutput
from caprompt.methods.options import Options
from caprompt.protocols import group_for_batches, is_released
from caprompt.utils.cuda_graphs import capture

__all__ = [
    "Float32Backbone",
    "Predictor",
    "PredictorCache",
    "choose_batch_size",
    "is_close",
    "map_samples",
    "predict_samples",
]

Predict = Callable[[Tensor, Tensor | None], MethodOutput]  # images and, with `give_task`, their true tasks
Result = TypeVar("Result")

DEFAULT_BATCH_SIZE = {"cpu": 64, "cuda": 256}
RECHECK_BATCH_SIZE = 32  # most images predicted again in float32 at once
CALIBRATION_IMAGES = 64  # predicted in both precisions, to measure how far rounding moves a margin
NUM_DEVIATIONS = 4  # of that rounding: a margin below this may be reversed by it


def map_samples(
    function: Callable[[Tensor, Tensor], Result],
    pipeline: InputPipeline,
    samples: Samples,
    targets: Sequence[int],
    options: Options,
    batch_size: int,
    groups: Sequence[int] | None = None,
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
            samples.select(positions), [targets[position] for position in positions], options, size
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
) -> MethodOutput:
    """Run a model over N samples and return its output in their order.

    `tasks` are the samples' true tasks: a protocol may require batches of one task, and `give_task` passes them to the model.
    """

    def predict_batch(images: Tensor, own_tasks: Tensor) -> MethodOutput:
        return predict(images, own_tasks if give_task else None)

    targets = [0] * len(samples) if tasks is None else tasks
    outputs, order = map_samples(predict_batch, pipeline, samples, targets, options, batch_size, groups=tasks)
    rows = torch.tensor(order).argsort()  # the output row of each sample
    fields = ("logits", "task_weights", "passes")
    joined = (torch.cat([getattr(output, name) for output in outputs]) for name in fields)
    return MethodOutput(*(tensor[rows.to(tensor.device)] for tensor in joined))


class Float32Backbone:
    """A float32 copy of a backbone, made when it is first needed."""

    def __init__(self, vit: ViT) -> None:
        self.original = vit

    @cached_property
    def vit(self) -> ViT:
        """The copy."""
        return convert_from_fp8(self.original.copy_uncompiled()).float()

    def attach_to(self, method: Method) -> Method:
        """Return the method on this backbone; everything it has learned is shared."""
        twin = copy.copy(method)
        twin._modules = dict(method._modules)
        twin.vit = self.vit
        return twin


class Predictor:
    """Predicts batches of at most `size` images."""

    def __init__(self, method: Method, size: int, float32_backbone: Float32Backbone | None = None) -> None:
        self.method = method
        self.size = size
        self.device = method.device
        self.float32_backbone = float32_backbone or Float32Backbone(method.vit)
        self.captured = capture(partial(_predict_tensors, method), self.device)
        self.float32_predictors: dict[int, Predictor] = {}  # by size
        self.squared_error = 0.0  # sum over images: margin in half precision minus margin in float32
        self.num_compared = 0  # images

    def __call__(self, images: Tensor, true_tasks: Tensor | None = None) -> MethodOutput:
        """Predict images (B, 3, S, S), with their true tasks (B,) if these are passed."""
        if true_tasks is not None:
            return self._predict_each(images, true_tasks)
        output = self.predict_batch(images)
        self.recheck_close(images, output)
        return output

    def predict_batch(self, images: Tensor) -> MethodOutput:
        """Predict images as one padded batch, or on a CPU one by one, in the backbone's own precision."""
        if self.device.type == "cpu" or not self.method.can_capture_predict:
            return self._predict_each(images)
        count = len(images)
        if count < self.size:
            images = torch.cat([images, images[-1:].expand(self.size - count, -1, -1, -1)])
        return MethodOutput(*(tensor[:count].clone() for tensor in self.captured(images)))

    def _predict_each(self, images: Tensor, true_tasks: Tensor | None = None) -> MethodOutput:
        """Predict images without a CUDA graph; on a CPU one by one, unless the protocol is that batches matter."""
        if self.device.type != "cpu" or is_released(self.method.options):
            return self.method.predict(images, true_tasks)
        return predict_separately(self.method, images, true_tasks)

    def recheck_close(self, images: Tensor, output: MethodOutput) -> None:
        """Replace outputs that rounding could have decided by those of float32."""
        is_exact = torch.finfo(self.method.vit.dtype).bits >= 32
        if is_exact or self.method.num_classes == 1 or is_released(self.method.options):
            return
        calibrated = min(len(images), RECHECK_BATCH_SIZE) if self.num_compared < CALIBRATION_IMAGES else 0
        self._recheck(torch.arange(calibrated, device=images.device), images, output)
        close = calibrated + is_close(output.logits[calibrated:], self.bound).nonzero().squeeze(1)
        for rows in close.split(RECHECK_BATCH_SIZE):
            self._recheck(rows, images, output)

    def _recheck(self, rows: Tensor, images: Tensor, output: MethodOutput) -> None:
        """Predict these rows of a batch in float32, and note how far their margins move."""
        if not len(rows):
            return
        exact = self.float32_predictor(len(rows)).predict_batch(images[rows])
        best = output.logits[rows].topk(2, dim=1)
        moved = _margin(exact.logits.gather(1, best.indices)) - _margin(best.values)
        moved = moved[moved.isfinite()]  # float16 may overflow, which is not rounding
        self.squared_error += float(moved.square().sum())
        self.num_compared += len(moved)
        output.logits[rows], output.task_weights[rows], output.passes[rows] = exact.logits, exact.task_weights, exact.passes

    @property
    def bound(self) -> float:
        """A margin below this may be reversed by rounding."""
        return NUM_DEVIATIONS * math.sqrt(self.squared_error / max(1, self.num_compared))

    def float32_predictor(self, count: int) -> Predictor:
        """Return the float32 predictor for `count` images; sizes are powers of two, since each is captured separately."""
        size = _next_power_of_two(count)
        if size not in self.float32_predictors:
            self.float32_predictors[size] = Predictor(self.float32_backbone.attach_to(self.method), size)
        return self.float32_predictors[size]


class PredictorCache:
    """Predictors by batch size and options, so that on a GPU a later call replays a graph that an earlier one captured."""

    def __init__(self) -> None:
        self.predictors: dict[tuple[int, str], Predictor] = {}
        self.float32_backbone: Float32Backbone | None = None  # shared by all of them

    def get(self, method: Method, size: int) -> Predictor:
        """Return the predictor of a method for batches of this size."""
        key = (size, method.options.model_dump_json())
        if key not in self.predictors:
            self.float32_backbone = self.float32_backbone or Float32Backbone(method.vit)
            self.predictors[key] = Predictor(method, size, self.float32_backbone)
        return self.predictors[key]

    def clear(self) -> None:
        """Drop every captured graph, because the model has changed."""
        self.predictors.clear()
        self.float32_backbone = None


def is_close(logits: Tensor, bound: float) -> Tensor:
    """Return which rows have a margin below the bound, or none because of NaN: (B, C) -> (B,).

    >>> is_close(torch.tensor([[8.0, 7.9, -1.0], [8.0, 7.0, -1.0]]), bound=0.5)
    tensor([ True, False])
    """
    return ~(_margin(logits.topk(2, dim=1).values) >= bound)  # also true of NaN


def choose_batch_size(num_images: int, requested: int | None, device: torch.device) -> int:
    """Return how many images to predict at once. On a GPU, where every size is captured, a few sizes serve all numbers.

    >>> cpu, gpu = torch.device("cpu"), torch.device("cuda")
    >>> choose_batch_size(1000, None, cpu), choose_batch_size(3, None, cpu), choose_batch_size(1000, 7, cpu)
    (64, 3, 7)
    >>> [choose_batch_size(count, None, gpu) for count in (3, 33, 130, 1000)], choose_batch_size(3, 7, gpu)
    ([4, 64, 160, 256], 3)
    """
    size = max(1, min(num_images, requested or DEFAULT_BATCH_SIZE.get(device.type, DEFAULT_BATCH_SIZE["cpu"])))
    if requested or device.type == "cpu":
        return size
    return _next_power_of_two(size) if size <= RECHECK_BATCH_SIZE else -(-size // RECHECK_BATCH_SIZE) * RECHECK_BATCH_SIZE


def _predict_tensors(method: Method, images: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    output = method.predict(images)
    return output.logits, output.task_weights, output.passes


def _margin(logits: Tensor) -> Tensor:
    """Return the first class's logit minus the second's: (B, 2) -> (B,)."""
    return logits[:, 0] - logits[:, 1]


def _next_power_of_two(count: int) -> int:
    """Return the smallest power of two that is not below a count.

    >>> [_next_power_of_two(count) for count in (1, 2, 3, 8, 9)]
    [1, 2, 4, 8, 16]
    """
    return 1 << (count - 1).bit_length()
