"""The checks of training steps fail for methods that violate them."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace

import pytest
import torch
from helpers import tiny_vit
from torch import Tensor

from caprompt.methods.linear import Linear
from caprompt.methods.templates import BaselineOptions
from caprompt.testing import list_checks, step_behavior


def read_value(method: LinearWithSideEffect, images: Tensor, labels: Tensor) -> None:
    labels.max().item()


def index_by_mask(method: LinearWithSideEffect, images: Tensor, labels: Tensor) -> None:
    images[labels > 0]


def copy_from_host(method: LinearWithSideEffect, images: Tensor, labels: Tensor) -> None:
    torch.arange(len(labels))


def count_steps(method: LinearWithSideEffect, images: Tensor, labels: Tensor) -> None:
    method.steps += 1


def replace_buffer(method: LinearWithSideEffect, images: Tensor, labels: Tensor) -> None:
    method.task_of_class = method.task_of_class.clone()


def store_images(method: LinearWithSideEffect, images: Tensor, labels: Tensor) -> None:
    method.seen.append(images)


def store_unsaved_tensor(method: LinearWithSideEffect, images: Tensor, labels: Tensor) -> None:
    method.last = images


def decay_head(method: LinearWithSideEffect, images: Tensor, labels: Tensor) -> None:
    method.head.weight.data *= 0.5


class LinearWithSideEffect(Linear):
    """A linear head with a side effect in every training step."""

    def __init__(self, side_effect: Callable[[LinearWithSideEffect, Tensor, Tensor], None]) -> None:
        super().__init__(tiny_vit(), BaselineOptions())
        self.side_effect = side_effect
        self.steps = 0
        self.seen: list[Tensor] = []

    def loss(self, images: Tensor, labels: Tensor) -> dict[str, Tensor]:
        self.side_effect(self, images, labels)
        return super().loss(images, labels)


@pytest.mark.parametrize(
    ("side_effect", "check"),
    [
        (read_value, step_behavior.check_steps_and_predictions_read_no_values),
        (index_by_mask, step_behavior.check_steps_and_predictions_read_no_values),
        (copy_from_host, step_behavior.check_steps_and_predictions_read_no_values),
        (count_steps, step_behavior.check_steps_update_in_place),
        (replace_buffer, step_behavior.check_steps_update_in_place),
        (store_unsaved_tensor, step_behavior.check_steps_update_in_place),
        (store_images, step_behavior.check_memory_is_constant_across_steps),
        (decay_head, step_behavior.check_threads_train_as_one_does),
    ],
)
def test_check_detects_the_side_effect(
    side_effect: Callable[[LinearWithSideEffect, Tensor, Tensor], None], check: Callable[..., None]
) -> None:
    def make(**settings: object) -> SimpleNamespace:
        return SimpleNamespace(method=LinearWithSideEffect(side_effect))

    with pytest.raises((AssertionError, RuntimeError)):
        check(make)


def test_checks_pass_without_a_side_effect() -> None:
    def make(**options: object) -> SimpleNamespace:
        return SimpleNamespace(method=LinearWithSideEffect(lambda method, images, labels: None))

    for check in list_checks():
        if check.function.__module__ == step_behavior.__name__ and not check.needs_gpu:
            check(make)  # type: ignore[arg-type]
