"""How a method is asked: in batches of one size, which on a GPU are recorded once and replayed.

A batch that is too short is filled up with copies of its last image, whose answers are thrown away. An image's answer is its own,
so company changes nothing.

In half precision that needs care: a batch and an image alone are multiplied by different kernels, which round differently in the
third digit. How far that moves the lead of one class over the next is a matter of the model, so it is measured on the first images
by asking them in float32 as well; from then on, images whose lead is so small that rounding could turn it are asked again there.
"""

from __future__ import annotations

import copy
import math
from functools import cached_property, partial

import torch
from torch import Tensor

from caprompt.backbones.fp8 import convert_from_fp8
from caprompt.backbones.vit import ViT
from caprompt.methods.base import Method, MethodOutput
from caprompt.protocols import is_released
from caprompt.utils.cuda_graphs import capture

__all__ = ["Float32Backbone", "Predictor", "PredictorCache", "choose_batch_size", "is_close"]

BATCH = {"cpu": 64, "cuda": 256}  # images answered at once where nobody says
AGAIN = 32  # images asked again at once, at most
ENOUGH = 64  # images in both precisions, to know how far rounding moves a lead
DEVIATIONS = 4  # of that rounding: a lead below this may be turned by it


class Float32Backbone:
    """A float32 copy of a backbone, made when it is first wanted."""

    def __init__(self, vit: ViT) -> None:
        self.first = vit

    @cached_property
    def vit(self) -> ViT:
        """The copy."""
        return convert_from_fp8(self.first.copy_uncompiled()).float()

    def attach_to(self, method: Method) -> Method:
        """The method on this backbone; all that it has learned is shared."""
        twin = copy.copy(method)
        twin._modules = dict(method._modules)
        twin.vit = self.vit
        return twin


class Predictor:
    """Answers for batches of at most `size` images."""

    def __init__(self, method: Method, size: int, second: Float32Backbone | None = None) -> None:
        self.method = method
        self.size = size
        self.device = method.device
        self.second = second or Float32Backbone(method.vit)
        self.same_work = capture(partial(predict_tensors, method), self.device)
        self.exact: dict[int, Predictor] = {}  # ways to ask in float32, by size
        self.squares = 0.0  # of the differences between leads in half precision and in float32
        self.compared = 0  # images

    def __call__(self, images: Tensor) -> MethodOutput:
        """The answer for each image: (B, 3, S, S)."""
        answer = self.together(images)
        self.settle(images, answer)
        return answer

    def together(self, images: Tensor) -> MethodOutput:
        """The answer for each image, as a batch gives it."""
        if self.device.type == "cpu" or not self.method.can_capture_predict:
            return self.method.predict(images)
        count = len(images)
        if count < self.size:
            images = torch.cat([images, images[-1:].expand(self.size - count, -1, -1, -1)])
        return MethodOutput(*(part[:count].clone() for part in self.same_work(images)))

    def settle(self, images: Tensor, answer: MethodOutput) -> None:
        """Put answers in float32 in the place of those that half precision leaves open."""
        exact = torch.finfo(self.method.vit.dtype).bits >= 32
        if exact or self.method.num_classes == 1 or is_released(self.method.options):
            return
        compared = min(len(images), AGAIN) if self.compared < ENOUGH else 0
        self.recheck(torch.arange(compared, device=images.device), images, answer)
        open_ones = compared + is_close(answer.logits[compared:], self.bound).nonzero().squeeze(1)
        for rows in open_ones.split(AGAIN):
            self.recheck(rows, images, answer)

    def recheck(self, rows: Tensor, images: Tensor, answer: MethodOutput) -> None:
        """Answers in float32 for these rows of a batch."""
        if not len(rows):
            return
        own = self.exactly(len(rows)).together(images[rows])
        best = answer.logits[rows].topk(2, dim=1)
        moved = top_margin(own.logits.gather(1, best.indices)) - top_margin(best.values)
        moved = moved[moved.isfinite()]  # float16 may overflow, which tells nothing of rounding
        self.squares += float(moved.square().sum())
        self.compared += len(moved)
        answer.logits[rows], answer.task_weights[rows], answer.passes[rows] = own.logits, own.task_weights, own.passes

    @property
    def bound(self) -> float:
        """A lead below this may be turned by rounding."""
        return DEVIATIONS * math.sqrt(self.squares / max(1, self.compared))

    def exactly(self, count: int) -> Predictor:
        """The way to ask so many images in float32: a power of two, since float32 is slow and each size is recorded by itself."""
        size = next_power_of_two(count)
        if size not in self.exact:
            self.exact[size] = Predictor(self.second.attach_to(self.method), size)
        return self.exact[size]


def predict_tensors(method: Method, images: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """An answer's tensors."""
    answer = method.predict(images)
    return answer.logits, answer.task_weights, answer.passes


def is_close(logits: Tensor, bound: float) -> Tensor:
    """Whose two likeliest classes are nearer to each other than this, or who has no likeliest at all: (B, C) -> (B,).

    >>> is_close(torch.tensor([[8.0, 7.9, -1.0], [8.0, 7.0, -1.0]]), bound=0.5)
    tensor([ True, False])
    """
    return ~(top_margin(logits.topk(2, dim=1).values) >= bound)  # also true of NaN


def top_margin(logits: Tensor) -> Tensor:
    """Of the first class over the second: (B, 2) -> (B,)."""
    return logits[:, 0] - logits[:, 1]


class PredictorCache:
    """Ways to ask, by batch size and options; kept, so that on a GPU a later call replays what an earlier one recorded."""

    def __init__(self) -> None:
        self.ways: dict[tuple[int, str], Predictor] = {}
        self.second: Float32Backbone | None = None  # one for all of them

    def answering(self, method: Method, size: int) -> Predictor:
        """The way to ask this method batches of this size."""
        key = (size, method.options.model_dump_json())
        if key not in self.ways:
            self.second = self.second or Float32Backbone(method.vit)
            self.ways[key] = Predictor(method, size, self.second)
        return self.ways[key]

    def clear(self) -> None:
        """Forget what was recorded, since it is of a model as it was."""
        self.ways.clear()
        self.second = None


def choose_batch_size(images: int, wished: int | None, device: torch.device) -> int:
    """How many of so many images to answer at once. On a GPU, where every size is recorded, a few sizes do for all numbers.

    >>> choose_batch_size(1000, None, torch.device("cpu")), choose_batch_size(3, None, torch.device("cpu")), choose_batch_size(1000, 7, torch.device("cpu"))
    (64, 3, 7)
    >>> [choose_batch_size(count, None, torch.device("cuda")) for count in (3, 33, 130, 1000)], choose_batch_size(3, 7, torch.device("cuda"))
    ([4, 64, 160, 256], 3)
    """
    size = max(1, min(images, wished or BATCH.get(device.type, BATCH["cpu"])))
    if wished or device.type == "cpu":
        return size
    return next_power_of_two(size) if size <= AGAIN else -(-size // AGAIN) * AGAIN


def next_power_of_two(count: int) -> int:
    """The next one.

    >>> [next_power_of_two(count) for count in (1, 2, 3, 8, 9)]
    [1, 2, 4, 8, 16]
    """
    return 1 << (count - 1).bit_length()
