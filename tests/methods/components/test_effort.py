from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from caprompt.methods.components.effort import BATCH_SIZES, MAX_EPOCHS, MIN_EPOCHS, Effort, choose_effort
from caprompt.methods.options import Options

AUTO = Options(epochs="auto", batch_size="auto", learning_rate="auto")
COUNTS = st.integers(0, 200_000)


@pytest.mark.parametrize(
    ("num_images", "batch_size", "epochs"),
    [
        (0, 16, 20),
        (1, 16, 20),
        (400, 16, 20),  # 500 steps of 16 are 20 epochs
        (500, 16, 16),
        (639, 16, 13),
        (640, 32, 20),  # an epoch has 20 steps of 32
        (1279, 32, 13),
        (1280, 64, 20),  # and 20 steps of 64
        (5000, 64, 6),
        (9142, 64, 4),  # 32,000 / 9,142 is just above 3.5
        (9143, 64, 3),
        (1_000_000, 64, 3),
    ],
)
def test_rule(num_images: int, batch_size: int, epochs: int) -> None:
    assert choose_effort(AUTO, num_images, 0.02) == Effort(epochs, batch_size, 0.02, chosen=True)


@given(COUNTS)
def test_choices_are_within_their_limits(num_images: int) -> None:
    effort = choose_effort(AUTO, num_images, 0.02)
    assert effort.batch_size in BATCH_SIZES
    assert MIN_EPOCHS <= effort.epochs <= MAX_EPOCHS


@given(COUNTS, COUNTS)
def test_more_images_have_larger_batches_and_with_equal_batches_fewer_epochs(one: int, other: int) -> None:
    fewer, more = (choose_effort(AUTO, count, 0.02) for count in sorted((one, other)))
    assert fewer.batch_size <= more.batch_size
    if fewer.batch_size == more.batch_size:
        assert fewer.epochs >= more.epochs


@given(st.integers(1, 200_000))
def test_more_than_the_smallest_batch_leaves_twenty_steps_per_epoch(num_images: int) -> None:
    batch_size = choose_effort(AUTO, num_images, 0.02).batch_size
    assert batch_size == BATCH_SIZES[0] or num_images >= 20 * batch_size


@pytest.mark.parametrize(
    ("given_options", "expected"),
    [
        ({"epochs": 7}, Effort(7, 64, 0.02, chosen=True)),
        ({"batch_size": 100}, Effort(10, 100, 0.02, chosen=True)),  # 500 steps of 100 images, from 5,000
        ({"learning_rate": 0.5}, Effort(6, 64, 0.5, chosen=True)),
        ({"epochs": 7, "batch_size": 100, "learning_rate": 0.5}, Effort(7, 100, 0.5, chosen=False)),
    ],
)
def test_given_options_win(given_options: dict[str, float], expected: Effort) -> None:
    assert choose_effort(AUTO.model_copy(update=given_options), 5000, 0.02) == expected


@pytest.mark.parametrize(("num_images", "epochs"), [(0, 0), (29, 0), (30, 20), (31, 20)])
def test_too_few_images_are_not_trained_on_unless_epochs_are_given(num_images: int, epochs: int) -> None:
    assert choose_effort(AUTO, num_images, 0.02, min_images=30) == Effort(epochs, 16, 0.02, chosen=True)
    assert choose_effort(AUTO.model_copy(update={"epochs": 7}), num_images, 0.02, min_images=30).epochs == 7


def test_nothing_is_chosen_by_default() -> None:
    """Only CAPrompt's own defaults are 'auto'."""
    assert choose_effort(Options(), 5000, 0.02) == Effort(5, 24, 0.003, chosen=False)


@pytest.mark.parametrize(
    ("effort", "num_images", "sentence"),
    [
        (Effort(20, 16, 0.02), 280, "280 images, so 20 epochs in batches of 16 (360 steps) at learning rate 0.02"),
        (Effort(20, 16, 0.005), 1, "1 image, so 20 epochs in batches of 16 (20 steps) at learning rate 0.005"),
        (Effort(1, 16, 0.12), 17, "17 images, so 1 epoch in batches of 16 (2 steps) at learning rate 0.12"),
        (Effort(1, 16, 0.02), 16, "16 images, so 1 epoch in batches of 16 (1 step) at learning rate 0.02"),
    ],
)
def test_description(effort: Effort, num_images: int, sentence: str) -> None:
    assert effort.describe(num_images) == sentence
