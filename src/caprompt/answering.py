"""How a method is asked: in batches of one size, which on a GPU are recorded once and replayed.

A batch that is too short is filled up with copies of its last image, whose answers are thrown away. An image's answer is its own,
so company changes nothing.

In bfloat16 that needs care: a batch and an image alone are multiplied by different kernels, which round differently in the third
digit. Where the two likeliest classes are so close that this could swap them, the image is asked again, alone.
"""

from __future__ import annotations

from functools import cached_property

import torch
from torch import Tensor

from caprompt.methods.base import Answer, Method
from caprompt.protocols import is_released
from caprompt.recording import recorded

__all__ = ["CLOSE", "Answering", "KnownWays", "batch_for"]

BATCH = {"cpu": 64, "cuda": 256}  # images answered at once where nobody says
CLOSE = 0.05  # two likeliest classes whose probabilities differ by less may be swapped by the rounding of half precision


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
        exact = torch.finfo(self.method.vit.dtype).bits >= 32
        if not exact and self.size > 1 and self.method.classes > 1 and not is_released(self.method.options):
            self.ask_close_ones_alone(images, answer)
        return answer

    def together(self, images: Tensor) -> Answer:
        """The answer for each image, as a batch gives it."""
        if self.device.type == "cpu" or not self.method.answers_alike:
            return self.method.answer(images)
        count = len(images)
        if count < self.size:
            images = torch.cat([images, images[-1:].expand(self.size - count, -1, -1, -1)])
        return Answer(*(part[:count].clone() for part in self.same_work(images)))

    def ask_close_ones_alone(self, images: Tensor, answer: Answer) -> None:
        """Put the answers of close decisions in the place of those that a batch gave."""
        best = answer.logits.softmax(dim=1).topk(2, dim=1).values  # (B, 2)
        for row in (best[:, 0] - best[:, 1] < CLOSE).nonzero().squeeze(1).tolist():
            own = self.alone.together(images[row : row + 1])
            answer.logits[row], answer.task_weights[row], answer.passes[row] = own.logits[0], own.task_weights[0], own.passes[0]

    @cached_property
    def alone(self) -> Answering:
        """The way to ask for one image."""
        return Answering(self.method, 1)


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
