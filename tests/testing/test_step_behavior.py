"""The checks of steps find what they are for: each is given a method that does it."""

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


def read_a_value(method: Careless, images: Tensor, labels: Tensor) -> None:
    labels.max().item()


def index_by_a_mask(method: Careless, images: Tensor, labels: Tensor) -> None:
    images[labels > 0]


def copy_from_the_host(method: Careless, images: Tensor, labels: Tensor) -> None:
    torch.arange(len(labels))


def count_steps(method: Careless, images: Tensor, labels: Tensor) -> None:
    method.steps += 1


def replace_a_buffer(method: Careless, images: Tensor, labels: Tensor) -> None:
    method.task_of_class = method.task_of_class.clone()


def store_images(method: Careless, images: Tensor, labels: Tensor) -> None:
    method.seen.append(images)


def store_an_unsaved_tensor(method: Careless, images: Tensor, labels: Tensor) -> None:
    method.last = images


class Careless(Linear):
    """A linear head that does one more thing in every step."""

    def __init__(self, side_effect: Callable[[Careless, Tensor, Tensor], None]) -> None:
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
        (read_a_value, step_behavior.check_steps_and_predictions_read_no_values),
        (index_by_a_mask, step_behavior.check_steps_and_predictions_read_no_values),
        (copy_from_the_host, step_behavior.check_steps_and_predictions_read_no_values),
        (count_steps, step_behavior.check_steps_update_in_place),
        (replace_a_buffer, step_behavior.check_steps_update_in_place),
        (store_an_unsaved_tensor, step_behavior.check_steps_update_in_place),
        (store_images, step_behavior.check_memory_is_constant_across_steps),
    ],
)
def test_a_careless_step_is_found(side_effect: Callable[[Careless, Tensor, Tensor], None], check: Callable[..., None]) -> None:
    def make(**settings: object) -> SimpleNamespace:
        return SimpleNamespace(method=Careless(side_effect))

    with pytest.raises((AssertionError, RuntimeError)):
        check(make)


def test_a_careful_step_passes() -> None:
    def make(**options: object) -> SimpleNamespace:
        return SimpleNamespace(method=Careless(lambda method, images, labels: None))

    for check in list_checks():
        if check.function.__module__ == step_behavior.__name__ and not check.needs_gpu:
            check(make)  # type: ignore[arg-type]
