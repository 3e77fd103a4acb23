"""What a method is: a frozen ViT, a head that grows, and five verbs.

    method.begin_task(classes=10, generator=g)      # room for new classes
    method.prepare(batches, generator=g)            # a look at the images before training on them; most need none
    losses = method.loss(images, labels)            # parts by name; the loop minimises their sum
    method.consolidate(batches, generator=g)        # after the loop: what the images tell about their classes
    answer = method.predict(images)                  # logits of every class so far, one image at a time in meaning

A method never declares how many tasks or classes will come. Classes are integers here, numbered as they arrive, so the classes
of a task stand side by side; names are the learner's business.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from caprompt.backbones.vit import ViT
from caprompt.methods.components.heads import Head, LinearHead
from caprompt.methods.options import Options

__all__ = ["Batches", "Method", "MethodOutput"]

Batches = Iterable[tuple[Tensor, Tensor]]  # images (B, 3, S, S) and their classes (B,)


@dataclass(frozen=True)
class MethodOutput:
    """What a method says of B images, given C classes in T tasks."""

    logits: Tensor  # (B, C)
    task_weights: Tensor  # (B, T), the weights behind the answer; they sum to one
    passes: Tensor  # (B,), forward passes that each image took


class Method(nn.Module, ABC):
    """A way of learning tasks one after another on a frozen ViT."""

    name: ClassVar[str]
    summary: ClassVar[str]
    options_class: ClassVar[type[Options]] = Options
    #: Do images of classes learned earlier go through the training loop too, or only to `consolidate`?
    trains_on_known_classes: ClassVar[bool] = False
    #: Is every step of a task the same kernels on the same tensors, so that a GPU may record one and replay it?
    can_capture_step: ClassVar[bool] = True

    options: Options
    head: Head

    def __init__(self, vit: ViT, options: Options, head: Head | None = None) -> None:
        super().__init__()
        self.vit = vit
        self.options = options
        self.head = LinearHead(vit.config.width) if head is None else head
        self.task_sizes: list[int] = []
        self.register_buffer("task_of_class", torch.zeros(0, dtype=torch.long), persistent=False)

    task_of_class: Tensor  # (C,), the task that each class came with; follows from the task sizes, so it is not saved

    @property
    def epochs(self) -> int:
        """How many epochs the current task is trained for. A method that does not train says 0; its `loss` is never asked for."""
        return self.options.epochs

    @property
    def trained_head(self) -> nn.Module:
        """What the loop trains at the head's rate; some methods train a proxy in place of the head that answers."""
        return self.head

    @property
    def device(self) -> torch.device:
        """Where the method computes."""
        return self.vit.cls_token.device

    @property
    def num_classes(self) -> int:
        """How many classes have been seen."""
        return sum(self.task_sizes)

    @property
    def num_known_classes(self) -> int:
        """How many of the classes came with earlier tasks."""
        return self.num_classes - self.task_sizes[-1]

    @property
    def can_capture_predict(self) -> bool:
        """Does `answer` do the same work for every batch, so that a GPU may record and replay it?"""
        return self.can_capture_step

    def announce(self, names: Sequence[str]) -> None:
        """Called before `begin_task` with the names of all classes, the new ones last; for methods that have read about them."""
        return

    def begin_task(self, classes: int, generator: torch.Generator) -> None:
        """Make room for new classes. Children that extend it call it first."""
        self.task_of_class = torch.cat([self.task_of_class, self.task_of_class.new_full((classes,), len(self.task_sizes))])
        self.task_sizes.append(classes)
        self.head.grow(classes, generator)

    def prepare(self, batches: Batches, generator: torch.Generator) -> None:
        """Called before training with every image to be trained on once, un-augmented.

        A call that was stopped and goes on is not prepared again: what this finds belongs into buffers or parameters.
        """
        return

    @abstractmethod
    def loss(self, images: Tensor, labels: Tensor) -> dict[str, Tensor]:
        """The parts of the training loss on one batch; their sum is minimised."""

    def consolidate(self, batches: Batches, generator: torch.Generator) -> None:
        """Called after training with every image of the call, un-augmented, known classes among them; `batches` may be repeated."""
        return

    @abstractmethod
    def predict(self, images: Tensor, true_tasks: Tensor | None = None) -> MethodOutput:
        """Logits of all classes seen. `true_tasks` (B,) is for experiments that give the task away."""

    def masked_cross_entropy(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Cross entropy among the classes of the current task; `logits` (B, C) are of all classes."""
        return nn.functional.cross_entropy(logits[:, self.num_known_classes :], labels - self.num_known_classes)

    def own_task_cross_entropy(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Cross entropy of each image among the classes of its own task, for methods that train on images of any task."""
        foreign = self.task_of_class != self.task_of_class[labels].unsqueeze(1)  # (B, C)
        return nn.functional.cross_entropy(logits.masked_fill(foreign, float("-inf")), labels)

    def output_from_logits(self, logits: Tensor, passes: int) -> MethodOutput:
        """The answer of a method that mixes nothing by task: its task weights are those that the class probabilities imply."""
        return MethodOutput(
            logits, self.sum_by_task(logits.softmax(dim=1)), torch.full_like(logits[:, 0], passes, dtype=torch.long)
        )

    def sum_by_task(self, probabilities: Tensor) -> Tensor:
        """Class probabilities summed per task: (B, C) -> (B, T)."""
        member = nn.functional.one_hot(self.task_of_class, len(self.task_sizes)).to(probabilities)  # (C, T)
        return probabilities @ member

    def state(self) -> dict[str, Tensor]:
        """Everything learned; the frozen backbone is not part of it."""
        return {name: tensor for name, tensor in self.state_dict().items() if not name.startswith("vit.")}

    def restore(self, task_sizes: Iterable[int], state: Mapping[str, Tensor]) -> None:
        """Grow to these tasks and take over a saved `state`, strictly. For a method that has seen no task yet."""
        for classes in task_sizes:
            self.begin_task(classes, torch.Generator())
        self.load_state_dict({**{f"vit.{name}": tensor for name, tensor in self.vit.state_dict().items()}, **state})
