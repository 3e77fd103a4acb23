"""The checks of steps do find what they are for: each is shown a method that does it."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from helpers import tiny_vit
from torch import Tensor

from caprompt.methods.linear import Linear
from caprompt.methods.templates import BaselineOptions

sys.path.insert(0, str(Path(__file__).parent))
import step_checks


def looks_at_a_value(method: Sloppy, images: Tensor, labels: Tensor) -> None:
    labels.max().item()


def picks_by_a_mask(method: Sloppy, images: Tensor, labels: Tensor) -> None:
    images[labels > 0]


def brings_numbers_from_the_host(method: Sloppy, images: Tensor, labels: Tensor) -> None:
    torch.arange(len(labels))


def counts_steps(method: Sloppy, images: Tensor, labels: Tensor) -> None:
    method.steps += 1


def makes_a_buffer_anew(method: Sloppy, images: Tensor, labels: Tensor) -> None:
    method.task_of_class = method.task_of_class.clone()


def keeps_what_it_saw(method: Sloppy, images: Tensor, labels: Tensor) -> None:
    method.seen.append(images)


def keeps_a_tensor_that_is_not_saved(method: Sloppy, images: Tensor, labels: Tensor) -> None:
    method.last = images


class Sloppy(Linear):
    """A linear head that does one more thing in every step."""

    def __init__(self, habit: Callable[[Sloppy, Tensor, Tensor], None]) -> None:
        super().__init__(tiny_vit(), BaselineOptions())
        self.habit = habit
        self.steps = 0
        self.seen: list[Tensor] = []

    def loss(self, images: Tensor, labels: Tensor) -> dict[str, Tensor]:
        self.habit(self, images, labels)
        return super().loss(images, labels)


@pytest.mark.parametrize(
    ("habit", "check"),
    [
        (looks_at_a_value, step_checks.check_steps_and_answers_never_look_at_values),
        (picks_by_a_mask, step_checks.check_steps_and_answers_never_look_at_values),
        (brings_numbers_from_the_host, step_checks.check_steps_and_answers_never_look_at_values),
        (counts_steps, step_checks.check_steps_change_things_in_place),
        (makes_a_buffer_anew, step_checks.check_steps_change_things_in_place),
        (keeps_a_tensor_that_is_not_saved, step_checks.check_steps_change_things_in_place),
        (keeps_what_it_saw, step_checks.check_memory_stays_flat_across_steps),
    ],
)
def test_a_sloppy_step_is_found(habit: Callable[[Sloppy, Tensor, Tensor], None], check: Callable[..., None]) -> None:
    def make(**settings: object) -> SimpleNamespace:
        return SimpleNamespace(method=Sloppy(habit))

    with pytest.raises((AssertionError, RuntimeError)):
        check(make)


def test_a_careful_step_passes() -> None:
    def make(**settings: object) -> SimpleNamespace:
        return SimpleNamespace(method=Sloppy(lambda method, images, labels: None))

    for check in step_checks.CHECKS:
        if "replayed" not in check.__name__:  # that one needs a GPU
            check(make)
