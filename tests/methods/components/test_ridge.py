from __future__ import annotations

import numpy as np
import pytest
import torch
from sklearn.linear_model import Ridge
from torch import Tensor

from caprompt.errors import InputError
from caprompt.methods.components.ridge import STRENGTHS, RidgeHead, halved, held_out_errors, whole


def hidden(count: int, width: int = 12, seed: int = 0) -> Tensor:
    return torch.randn(count, width, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).relu()


def labels(count: int, classes: int = 3) -> Tensor:
    return torch.arange(count) % classes


def head(width: int = 12, classes: int = 3) -> RidgeHead:
    made = RidgeHead(width)
    made.grow(classes, torch.Generator())
    return made


def prefer(made: RidgeHead, strength: float) -> RidgeHead:
    """Make the head take this strength."""
    made.errors.fill_(1)
    made.errors[STRENGTHS.index(strength)] = 0
    return made


def sklearn_ridge(x: Tensor, y: Tensor, strength: float) -> Ridge:
    return Ridge(alpha=strength, fit_intercept=False, solver="svd").fit(x.numpy(), y.numpy())


@pytest.mark.parametrize("strength", [0.1, 10.0, 1000.0])
def test_weights_are_scikit_learns_ridge(strength: float) -> None:
    x, y = hidden(40), labels(40)
    ridge = prefer(head(), strength)
    ridge.observe(x.float(), y)
    ridge.solve()
    expected = sklearn_ridge(x.float().double(), torch.nn.functional.one_hot(y).double(), strength)
    np.testing.assert_allclose(ridge.weight.numpy(), expected.coef_, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("count", [30, 9], ids=["more images than features", "fewer"])
def test_one_decomposition_gives_scikit_learns_error_at_every_strength(count: int) -> None:
    x, y = hidden(count), torch.nn.functional.one_hot(labels(count)).double()
    held, held_y = hidden(7, seed=1), torch.nn.functional.one_hot(labels(7)).double()
    found = held_out_errors(x, y, held, held_y)
    assert len(found) == len(STRENGTHS) == 17
    for strength, error in zip(STRENGTHS, found.tolist(), strict=True):
        predicted = sklearn_ridge(x, y, strength).predict(held.numpy())
        assert error == pytest.approx(float(((predicted - held_y.numpy()) ** 2).sum()), rel=1e-5)


def test_sums_grow_with_classes_and_calls_as_if_all_had_come_at_once() -> None:
    x = hidden(30).float()
    y = torch.cat([labels(20, 2), labels(10, 3)])
    at_once = prefer(head(classes=3), 1.0)
    at_once.observe(x, y)
    at_once.solve()
    grown = prefer(head(classes=2), 1.0)
    grown.observe(x[:20], y[:20])
    grown.solve()
    before = grown.weight.clone()
    grown.grow(1, torch.Generator())
    assert torch.equal(grown.weight[:2], before)
    assert not grown.weight[2].any()
    grown.observe(x[20:], y[20:])
    grown.solve()
    torch.testing.assert_close(grown.gram, at_once.gram)
    torch.testing.assert_close(grown.weight, at_once.weight, rtol=1e-4, atol=1e-6)


def test_errors_add_up_over_calls() -> None:
    """Targets of pure chance ask for much strength, clean ones for little; a small call does not overrule a large one."""
    x, chance = hidden(300, 60), torch.randint(3, (300,), generator=torch.Generator().manual_seed(5))
    clean = (x @ (hidden(3, 60, seed=3) - 0.5).T).argmax(dim=1)
    large, small, both = head(60), head(60), head(60)
    for ridge, targets in ((large, chance), (both, chance), (small, clean[:40]), (both, clean[:40])):
        ridge.observe(x[: len(targets)].float(), targets)
        ridge.weigh_strengths(x[: len(targets)].float(), targets)
    torch.testing.assert_close(both.errors, large.errors + small.errors)
    assert small.errors.argmin() < large.errors.argmin() == both.errors.argmin()
    assert both.strength == large.strength


@pytest.mark.parametrize(("weaker", "expected"), [(2.09, 10), (2.11, 11)])
def test_strength_is_one_weaker_than_the_best_where_that_is_nearly_as_good(weaker: float, expected: int) -> None:
    ridge = head()
    ridge.observe(hidden(4).float(), labels(4))
    ridge.errors.fill_(3)
    ridge.errors[9:13] = torch.tensor([2.05, weaker, 2.0, 2.04])
    assert ridge.strength == STRENGTHS[expected]


def test_one_image_has_nothing_to_be_held_against() -> None:
    ridge = head()
    ridge.weigh_strengths(hidden(1).float(), labels(1))
    assert not ridge.errors.any()


def test_strength_does_not_drown_in_rounding() -> None:
    """A singular G: ten images, a hundred features. The least strength would leave nothing but noise."""
    ridge = prefer(head(100), 1e-8)
    x, y = 30 * hidden(10, 100).float(), labels(10)
    ridge.observe(x, y)
    ridge.solve()
    assert 1e-8 < ridge.strength < 1
    torch.testing.assert_close(ridge(x), torch.nn.functional.one_hot(y).float(), rtol=0, atol=0.01)


@pytest.mark.parametrize("size", [1, 4, 7])
def test_half_of_the_sums_is_kept_and_what_is_solved_comes_back_to_the_last_bit(size: int) -> None:
    square = torch.randn(size, size, generator=torch.Generator().manual_seed(0))  # above the diagonal it may say anything
    half = halved(square)
    back = whole(half, size)
    assert half.numel() <= (size + 1) * (size + 2) / 2
    assert torch.equal(back, back.T)
    assert torch.equal(back.tril(), square.tril())
    assert torch.equal(whole(square, size), square)  # as models were saved before


def test_images_that_are_all_but_the_same_have_a_solution() -> None:
    """Fifty thousand additions of nearly one picture round G's float32 sums further than the floor under lambda allows for."""
    ridge, chance = prefer(head(width=40, classes=2), STRENGTHS[0]), torch.Generator().manual_seed(0)
    for _ in range(3000):
        ridge.observe(1 + 1e-4 * torch.randn(1, 40, generator=chance), torch.tensor([0]))
    ridge.gram.diagonal().sub_(2 * ridge.strength)  # as far below zero as rounding may get
    with pytest.raises(torch.linalg.LinAlgError):
        torch.linalg.cholesky(ridge.gram.double() + ridge.strength * torch.eye(40, dtype=torch.float64))
    ridge.solve()
    assert ridge.weight.isfinite().all()


@pytest.mark.parametrize("wrong", [float("nan"), float("inf")])
def test_features_that_are_no_numbers_are_refused(wrong: float) -> None:
    ridge, x = head(), hidden(6).float()
    x[2, 3] = wrong
    ridge.observe(x, labels(6))
    with pytest.raises(InputError, match="no finite numbers"):
        ridge.solve()
