"""The base class of all methods: a frozen ViT, a growing classifier head, and five hooks.

    method.begin_task(num_classes=10, generator=g)  # add new classes
    method.prepare(batches, generator=g)            # optional pass over the images before training
    losses = method.loss(images, labels)            # loss terms by name; their sum is minimized
    method.consolidate(batches, generator=g)        # optional pass over the images after training
    output = method.predict(images)                 # logits of all classes seen so far

A method never declares how many tasks or classes will come. Classes are integers in order of
arrival, so the classes of a task are contiguous; their names are known to the classifier only. A
prediction must not depend on the other images of its batch.

Shapes: B images of size S, C classes seen so far, T tasks seen so far.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any, ClassVar, Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from caprompt.backbones.vit import ViT
from caprompt.methods.components.effort import choose_effort
from caprompt.methods.components.heads import Head, LinearHead
from caprompt.methods.options import Options
from caprompt.protocols import is_released

__all__ = ["Batches", "CroppableBatches", "HonestScores", "Method", "MethodOutput"]

Batches = Iterable[tuple[Tensor, Tensor]]  # images (B, 3, S, S) and their classes (B,)


@runtime_checkable
class CroppableBatches(Protocol):
    """Batches of images that can also be had with another central crop than that at prediction."""

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]: ...

    def crop(self, share: float) -> Batches:
        """Return the same batches, with a crop of this share of the short side of each image."""
        ...

    def measure_short_side(self) -> int:
        """Return the median short side of the images as they are stored, in pixels."""
        ...


@dataclass(frozen=True)
class MethodOutput:
    """Output of a method for B images, with C classes in T tasks."""

    logits: Tensor  # (B, C)
    task_weights: Tensor  # (B, T), the task weights behind the logits; each row sums to one
    passes: Tensor  # (B,), number of forward passes per image


@dataclass(frozen=True)
class HonestScores:
    """Logits of images of the last call by a model that has not learned from them, for calibration."""

    logits: Tensor  # (n, C); with `optimistic`, of a weaker form of the model
    labels: Tensor  # (n,)
    optimistic: Tensor | None = None  # (n, C), as the model predicts, though it has trained on these images


class Method(nn.Module, ABC):
    """A class-incremental learning method on a frozen ViT."""

    name: ClassVar[str]
    summary: ClassVar[str]
    options_class: ClassVar[type[Options]] = Options
    #: Whether further images of known classes are trained on, or only passed to `consolidate`.
    trains_on_known_classes: ClassVar[bool] = False
    #: Whether all training steps of a task run the same kernels on the same tensors, so that one
    #: can be captured as a CUDA graph.
    can_capture_step: ClassVar[bool] = True
    #: Whether `loss` may run in several threads at once, on parts of a batch, where `explain_indivisible` allows it: it must not
    #: change the method, nor draw random numbers.
    can_train_in_threads: ClassVar[bool] = False
    #: Options that make the method quick on a tiny ViT, used by `caprompt.testing`.
    check_options: ClassVar[Mapping[str, Any]] = MappingProxyType({"epochs": 2, "batch_size": 4})
    #: Option settings that `caprompt.testing` tries besides the defaults.
    check_variants: ClassVar[tuple[Mapping[str, Any], ...]] = ()

    #: Options that a merged model gets, where others would depend on how images were divided among the models.
    merged_options: ClassVar[Mapping[str, Any]] = MappingProxyType({})

    options: Options
    head: Head
    task_of_class: Tensor  # (C,), the task of each class; follows from the task sizes, so it is not saved

    def __init__(self, vit: ViT, options: Options, head: Head | None = None) -> None:
        super().__init__()
        self.vit = vit
        self.options = options
        self.head = LinearHead(vit.config.width) if head is None else head
        self.effort = choose_effort(options, 0, self.default_learning_rate)
        self.task_sizes: list[int] = []
        #: Set by `consolidate` where the method can score images as if it had not learned them.
        self.honest_scores: HonestScores | None = None
        #: Names of the state that a model was published without: it predicts but cannot learn.
        self.removed_state: frozenset[str] = frozenset()
        self.register_buffer("task_of_class", torch.zeros(0, dtype=torch.long), persistent=False)

    @property
    def default_learning_rate(self) -> float:
        """The learning rate that "auto" stands for: here the one that methods share."""
        return float(Options.model_fields["learning_rate"].default)

    @property
    def min_trained_images(self) -> int:
        """Images of a class, on average, below which automatic epochs are none: with 0, a task is always trained."""
        return 0

    def choose_effort(self, num_images: int, num_classes: int) -> None:
        """Choose epochs, batch size and learning rate for the current task; called before `prepare`."""
        min_images = self.min_trained_images * num_classes
        self.effort = choose_effort(self.options, num_images, self.default_learning_rate, min_images)

    def choose_by_images(self, batches: Batches, generator: torch.Generator) -> None:
        """Choose what depends on the images of the first task; called before `prepare`."""

    def describe_choices(self, num_images: int) -> str:
        """Return what was chosen for a task of so many images, and why, in one line; empty if nothing was."""
        is_chosen = self.effort.chosen and (self.epochs or not self.effort.epochs)  # a method may train its first task only
        return replace(self.effort, epochs=self.epochs).describe(num_images) if is_chosen else ""

    @property
    def input_options(self) -> Options:
        """The options by which images are prepared for prediction."""
        return self.options

    @property
    def epochs(self) -> int:
        """Number of training epochs of the current task; with 0, `loss` is never called."""
        return self.effort.epochs

    @property
    def can_compile_step(self) -> bool:
        """Whether torch.compile may be used for training: where a compiled step was measured on a GPU, and was right."""
        return False

    @property
    def trained_head(self) -> nn.Module:
        """Module trained at the head's learning rate: the head, or a proxy for it."""
        return self.head

    @property
    def device(self) -> torch.device:
        """Device of the backbone."""
        return self.vit.cls_token.device

    @property
    def num_classes(self) -> int:
        """Number of classes seen so far."""
        return sum(self.task_sizes)

    @property
    def num_known_classes(self) -> int:
        """Number of classes of all tasks before the current one."""
        return self.num_classes - self.task_sizes[-1]

    @property
    def learning_state(self) -> tuple[str, ...]:
        """Names of state, or prefixes of names, that only learning needs; a model is published without it.

        Declare it where the method stores statistics of features; `predict` must not read it.
        """
        return ()

    @property
    def can_predict_in_threads(self) -> bool:
        """Whether `predict` may run in several threads at once: it must not change the method, not even for a moment."""
        return True

    @property
    def can_capture_predict(self) -> bool:
        """Whether `predict` runs the same kernels for every batch, so that it can be captured."""
        return self.can_capture_step

    def set_class_names(self, names: Sequence[str]) -> None:
        """Receive the names of all classes, the new ones last; called before `begin_task`."""
        return

    def begin_task(self, num_classes: int, generator: torch.Generator) -> None:
        """Add new classes. Subclasses that extend this call it first."""
        self.task_of_class = torch.cat([self.task_of_class, self.task_of_class.new_full((num_classes,), len(self.task_sizes))])
        self.task_sizes.append(num_classes)
        self.head.grow(num_classes, generator)

    def prepare(self, batches: Batches, generator: torch.Generator) -> None:
        """Process all training images of the task once, without augmentation, before training.

        This is not repeated when an interrupted call is resumed, so results must be stored in
        buffers or parameters.
        """
        return

    @abstractmethod
    def loss(self, images: Tensor, labels: Tensor) -> dict[str, Tensor]:
        """Return the terms of the training loss on one batch; their sum is minimized."""

    def consolidate(self, batches: Batches, generator: torch.Generator) -> None:
        """Process all images of the call, without augmentation, after training.

        Images of known classes are included, and `batches` can be iterated more than once.
        """
        return

    @abstractmethod
    def predict(self, images: Tensor, true_tasks: Tensor | None = None) -> MethodOutput:
        """Predict all classes seen so far.

        `true_tasks` (B,) is for experiments with known task identity.
        """

    def masked_cross_entropy(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Return the cross entropy over the current task's classes, from all logits (B, C)."""
        return nn.functional.cross_entropy(logits[:, self.num_known_classes :], labels - self.num_known_classes)

    def own_task_cross_entropy(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Return the cross entropy of images of any task, each over the classes of its own task."""
        is_other_task = self.task_of_class != self.task_of_class[labels].unsqueeze(1)  # (B, C)
        return nn.functional.cross_entropy(logits.masked_fill(is_other_task, float("-inf")), labels)

    def output_from_logits(self, logits: Tensor, passes: int) -> MethodOutput:
        """Return the output of a method whose task weights are summed class probabilities."""
        return MethodOutput(
            logits, self.sum_by_task(logits.softmax(dim=1)), torch.full_like(logits[:, 0], passes, dtype=torch.long)
        )

    def sum_by_task(self, probabilities: Tensor) -> Tensor:
        """Sum class probabilities by task: (B, C) -> (B, T)."""
        membership = nn.functional.one_hot(self.task_of_class, len(self.task_sizes)).to(probabilities)  # (C, T)
        return probabilities @ membership

    # -- forgetting --------------------------------------------------------------------------------

    def explain_inexact(self, has_images: bool) -> str | None:
        """Return why a class cannot be forgotten exactly, so that nothing of its images is left; None if it can.

        `has_images` says whether the images of the class are given once more.
        """
        return "its images have trained parameters that other classes use as well"

    def subtract_class(self, index: int, batches: Batches | None) -> None:
        """Take a class's images out of sums over images of several classes, where that is possible.

        `batches` are its images, if they are given once more. Its own rows are removed by
        `removal.remove_class`.
        """
        return

    def refit(self) -> None:
        """Compute what follows from the learned state in closed form, after a class was removed."""
        return

    # -- several processes, several models ---------------------------------------------------------

    @property
    def divides_passes(self) -> bool:
        """Whether `prepare` and `consolidate` take a share of the batches where several processes learn together.

        They then exchange what they compute (`utils.communication`); if not, every process computes everything.
        """
        return False

    def explain_indivisible(self) -> str | None:
        """Return why a batch cannot be divided among processes; None if its loss is the mean of the losses of its images."""
        return "with protocol=released, an image gets prompts of its neighbors in the batch" if is_released(self.options) else None

    @property
    def common_state(self) -> Mapping[str, str]:
        """Names of state, or prefixes of names, that models must have in common to be merged; each with what to say if not."""
        return {}

    def explain_unmergeable(self) -> str | None:
        """Return why this model cannot be merged with others; None if all that it does not share with them are sums."""
        return f"the method '{self.name}' trains parameters on every task, and those of two models cannot be added up"

    def merge(self, other: Method, classes: Tensor, num_images: int, sign: int = 1) -> None:
        """Add what another model of this kind has learned, or take it out again (`sign=-1`); `finish_merge` follows.

        Its class i is class `classes[i]` here, and it has learned `num_images` images.
        """
        raise NotImplementedError

    def finish_merge(self) -> None:
        """Compute what follows from the learned state in closed form, after models were merged."""
        return

    def state(self) -> dict[str, Tensor]:
        """Return the learned state: the state dict without the frozen backbone and what was removed."""
        return {name: tensor for name, tensor in self.state_dict().items() if not self._is_left_out(name)}

    def estimate_saved_bytes(self) -> int:
        """Return about how much space the learned state will take on disk after the next call."""
        pending = sum(getattr(module, "pending_bytes", 0) for module in self.modules())
        return pending + sum(tensor.nbytes for tensor in self.state().values())

    def restore(self, task_sizes: Iterable[int], state: Mapping[str, Tensor]) -> None:
        """Grow a new method to these tasks and load a saved `state`, strictly."""
        for num_classes in task_sizes:
            self.begin_task(num_classes, torch.Generator())
        left_out = {name: tensor for name, tensor in self.state_dict().items() if self._is_left_out(name)}
        self.load_state_dict({**left_out, **state})

    def _is_left_out(self, name: str) -> bool:
        return name.startswith("vit.") or name in self.removed_state

    def list_learning_state(self) -> list[str]:
        """Return the names of the state that only learning needs."""
        return [name for name in self.state() if any(f"{name}.".startswith(f"{part}.") for part in self.learning_state)]

    def list_feature_statistics(self) -> list[str]:
        """Return the names of state that holds statistics of the features of images.

        A module names its own in an attribute `feature_statistics`.
        """
        modules = [(f"{path}." if path else "", module) for path, module in self.named_modules()]
        names = {f"{prefix}{name}" for prefix, module in modules for name in getattr(module, "feature_statistics", ())}
        return [name for name in self.state() if name in names]
