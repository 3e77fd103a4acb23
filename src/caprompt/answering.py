"""How a method is asked: in batches of one size, which on a GPU are recorded once and replayed.

A batch that is too short is filled up with copies of its last image, whose answers are thrown away. An image's answer is its own,
so company changes nothing.

In half precision that needs care: a batch and an image alone are multiplied by different kernels, which round differently in the
third digit. Where the two likeliest classes are so close that this could swap them, the image is asked again in float32.
"""

from __future__ import annotations

import copy
from functools import cached_property

import torch
from torch import Tensor

from caprompt.fp8 import release_from_fp8
from caprompt.methods.base import Answer, Method
from caprompt.protocols import is_released
from caprompt.recording import recorded

__all__ = ["CLOSE", "Answering", "KnownWays", "batch_for", "close", "in_float32"]

BATCH = {"cpu": 64, "cuda": 256}  # images answered at once where nobody says
CLOSE = 0.03  # of the largest logit: two best ones that differ by less may be swapped by the rounding of half precision
AGAIN = 32  # close decisions made at once; there are few in a batch


class Answering:
    """Answers for batches of at most `size` images."""

    def __init__(self, method: Method, size: int) -> None:
        self.method = method
        self.size = size
        self.device = method.device
        self.same_work = recorded(self.parts, self.device)

    def parts(self, images: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """An answer's tensors."""
        answer = self.method.answer(images)
        return answer.logits, answer.task_weights, answer.passes

    def __call__(self, images: Tensor) -> Answer:
        """The answer for each image: (B, 3, S, S)."""
        answer = self.together(images)
        self.settle(images, answer)
        return answer

    def together(self, images: Tensor) -> Answer:
        """The answer for each image, as a batch gives it."""
        if self.device.type == "cpu" or not self.method.answers_alike:
            return self.method.answer(images)
        count = len(images)
        if count < self.size:
            images = torch.cat([images, images[-1:].expand(self.size - count, -1, -1, -1)])
        return Answer(*(part[:count].clone() for part in self.same_work(images)))

    def settle(self, images: Tensor, answer: Answer) -> None:
        """Put answers in float32 in the place of those that half precision leaves open."""
        exact = torch.finfo(self.method.vit.dtype).bits >= 32
        if exact or self.method.classes == 1 or is_released(self.method.options):
            return
        rows = close(answer.logits).nonzero().squeeze(1)
        for some in rows.split(AGAIN) if len(rows) else ():
            own = self.exactly.together(images[some])
            answer.logits[some], answer.task_weights[some], answer.passes[some] = own.logits, own.task_weights, own.passes

    @cached_property
    def exactly(self) -> Answering:
        """The way to ask in float32; it takes memory for a second backbone, so it is made when it is wanted."""
        return Answering(in_float32(self.method), min(self.size, AGAIN))


def close(logits: Tensor) -> Tensor:
    """Which decisions rounding could turn: (B, C) -> (B,).

    >>> close(torch.tensor([[8.0, 7.9, -1.0], [8.0, 7.0, -1.0], [0.010, -9.0, 0.008]]))
    tensor([ True, False,  True])
    """
    best = logits.topk(2, dim=1).values  # (B, 2)
    return best[:, 0] - best[:, 1] < CLOSE * logits.abs().amax(dim=1)


def in_float32(method: Method) -> Method:
    """The method with a float32 copy of its backbone; all that it has learned is shared."""
    twin = copy.copy(method)
    twin._modules = dict(method._modules)
    twin.vit = release_from_fp8(method.vit.uncompiled_copy()).float()
    return twin


class KnownWays:
    """Ways to ask, by batch size and options; kept, so that on a GPU a later call replays what an earlier one recorded."""

    def __init__(self) -> None:
        self.ways: dict[tuple[int, str], Answering] = {}

    def answering(self, method: Method, size: int) -> Answering:
        """The way to ask this method batches of this size."""
        key = (size, method.options.model_dump_json())
        if key not in self.ways:
            self.ways[key] = Answering(method, size)
        return self.ways[key]

    def clear(self) -> None:
        """Forget what was recorded, since it is of a model as it was."""
        self.ways.clear()


def batch_for(images: int, wished: int | None, device: torch.device) -> int:
    """How many of so many images to answer at once.

    >>> batch_for(1000, None, torch.device("cpu")), batch_for(3, None, torch.device("cpu")), batch_for(1000, 7, torch.device("cpu"))
    (64, 3, 7)
    """
    return max(1, min(images, wished or BATCH.get(device.type, BATCH["cpu"])))
