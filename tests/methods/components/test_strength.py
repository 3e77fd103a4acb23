"""Selection of the regression's strength by images that are left out."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from caprompt.methods.components.readout import compute_kernel, compute_left_out_errors
from caprompt.methods.components.strength import (
    MAX_OF_CLASS,
    MAX_ROWS,
    MIN_OF_CLASS,
    STRENGTHS,
    USUAL,
    choose_images,
    make_evidence,
    select_strength,
)


def draw_views(noise: float, count: int = 6, num_views: int = 3, seed: int = 0) -> tuple[list[Tensor], Tensor]:
    """Return slightly different views (n, 8) of images of three classes around their means."""
    rng = torch.Generator().manual_seed(seed)
    labels = torch.arange(3).repeat(count)
    images = torch.eye(3, 8)[labels] + noise * torch.randn(len(labels), 8, generator=rng)
    return [images + 0.05 * torch.randn(images.shape, generator=rng) for _ in range(num_views)], labels


def test_errors_are_those_of_regressions_without_the_image_and_its_views() -> None:
    views, labels = draw_views(0.5)
    rows, targets = torch.cat(views).double(), F.one_hot(labels).double()
    errors = compute_left_out_errors(rows @ rows.T, labels, 0.3, len(views))
    squares = rows.square().sum(dim=1)
    kernel = compute_kernel(rows @ rows.T, squares, squares)
    outputs = []
    for image in range(len(labels)):
        rest = (torch.arange(len(rows)) % len(labels) != image).nonzero()[:, 0]
        system = kernel[rest][:, rest] + 0.3 * len(views) * kernel.diagonal().mean() * torch.eye(len(rest))
        outputs.append(kernel[image, rest] @ torch.linalg.solve(system, targets[rest % len(labels)]))
    centered, left_out = targets - targets.mean(dim=0), torch.stack(outputs) - torch.stack(outputs).mean(dim=0)
    factor = (left_out * centered).sum() / left_out.square().sum()
    torch.testing.assert_close(errors, (centered - factor * left_out).square().sum(dim=1))


def test_more_equal_views_change_nothing() -> None:
    views, labels = draw_views(0.5, num_views=1)
    once, thrice = (make_evidence(views * count, labels) for count in (1, 3))
    torch.testing.assert_close(once, thrice)


def test_noisy_images_ask_for_a_stronger_regression_than_clear_ones() -> None:
    selected = []
    for noise in (0.05, 1.5):
        evidence = sum(make_evidence(*draw_views(noise, count=10, seed=seed)) for seed in range(10))
        assert isinstance(evidence, Tensor)
        selected.append(select_strength(evidence))
    assert selected[0] < selected[1]


def test_a_gain_within_its_standard_error_is_none() -> None:
    gains = torch.zeros(4, len(STRENGTHS), dtype=torch.float64)
    gains[:, 0] = torch.tensor([1.0, -0.8, 1.0, -0.8])  # 0.1 on average, with a standard error of 0.45
    evidence = torch.stack([gains.sum(dim=0), gains.square().sum(dim=0), torch.full((len(STRENGTHS),), 4.0)])
    assert select_strength(evidence) == USUAL
    assert select_strength(evidence + torch.tensor([[2.0], [1.0], [0.0]]) * F.one_hot(torch.tensor(0), len(STRENGTHS))) == 0.01


@pytest.mark.parametrize(("counts", "views"), [([5, 6, 5], 6), ([40] * 8, 6), ([5] * 200, 6), ([300, 300], 6)])
def test_chosen_images_fit_and_every_class_has_enough_of_them(counts: list[int], views: int) -> None:
    labels = torch.cat([torch.full((count,), label) for label, count in enumerate(counts)])
    labels = labels[torch.randperm(len(labels), generator=torch.Generator().manual_seed(3))]
    chosen = choose_images(labels, views, torch.Generator())
    found = labels[chosen].bincount()
    assert len(chosen) * views <= MAX_ROWS
    assert len(chosen) == len(chosen.unique())
    assert int(found[found > 0].min()) >= MIN_OF_CLASS
    assert len(chosen) >= min(len(labels), 2 * min(MAX_OF_CLASS, min(counts)))


def test_the_few_images_of_a_class_are_not_left_out() -> None:
    labels = torch.tensor([0] * 4 + [1] * 5)
    assert choose_images(labels, 1, torch.Generator()).tolist() == []
    assert choose_images(torch.cat([labels, torch.full((5,), 2)]), 1, torch.Generator()).tolist() == list(range(4, 14))


def test_images_that_say_nothing_leave_the_usual_strength() -> None:
    labels = torch.tensor([0, 1] * 5)
    equal = make_evidence([torch.ones(10, 4)] * 2, labels)
    assert equal.isfinite().all()
    assert select_strength(equal) == USUAL
    broken = make_evidence([torch.full((10, 4), torch.nan)] * 2, labels)
    assert select_strength(broken) == USUAL, "the regression itself says what is wrong"
