from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from sklearn.linear_model import Ridge
from thread_group import ThreadGroup, run_in_threads
from torch import Tensor

from caprompt.errors import InputError
from caprompt.methods.components.ridge import (
    STRENGTHS,
    RandomRidge,
    RidgeHead,
    compute_held_out_errors,
    pack_symmetric,
    unpack_symmetric,
)


def make_hidden(count: int, width: int = 12, seed: int = 0) -> Tensor:
    return torch.randn(count, width, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).relu()


def make_labels(count: int, classes: int = 3) -> Tensor:
    return torch.arange(count) % classes


def make_head(width: int = 12, num_classes: int = 3) -> RidgeHead:
    head = RidgeHead(width)
    head.grow(num_classes, torch.Generator())
    return head


def prefer(head: RidgeHead, strength: float) -> RidgeHead:
    """Make the head select this lambda."""
    head.errors.fill_(1)
    head.errors[STRENGTHS.index(strength)] = 0
    return head


def fit_sklearn_ridge(x: Tensor, y: Tensor, strength: float) -> Ridge:
    return Ridge(alpha=strength, fit_intercept=False, solver="svd").fit(x.numpy(), y.numpy())


@pytest.mark.parametrize("strength", [0.1, 10.0, 1000.0])
def test_weights_equal_scikit_learns_ridge(strength: float) -> None:
    x, y = make_hidden(40), make_labels(40)
    ridge = prefer(make_head(), strength)
    ridge.observe(x.float(), y)
    ridge.solve()
    expected = fit_sklearn_ridge(x.float().double(), torch.nn.functional.one_hot(y).double(), strength)
    np.testing.assert_allclose(ridge.weight.numpy(), expected.coef_, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("count", [30, 9], ids=["more images than features", "fewer"])
def test_held_out_errors_equal_scikit_learns_at_every_strength(count: int) -> None:
    x, y = make_hidden(count), torch.nn.functional.one_hot(make_labels(count)).double()
    test_x, test_y = make_hidden(7, seed=1), torch.nn.functional.one_hot(make_labels(7)).double()
    errors = compute_held_out_errors(x, y, test_x, test_y)
    assert len(errors) == len(STRENGTHS) == 17
    for strength, error in zip(STRENGTHS, errors.tolist(), strict=True):
        predicted = fit_sklearn_ridge(x, y, strength).predict(test_x.numpy())
        assert error == pytest.approx(float(((predicted - test_y.numpy()) ** 2).sum()), rel=1e-5)


def test_incremental_updates_equal_one_update_with_all_images() -> None:
    x = make_hidden(30).float()
    y = torch.cat([make_labels(20, 2), make_labels(10, 3)])
    at_once = prefer(make_head(num_classes=3), 1.0)
    at_once.observe(x, y)
    at_once.solve()
    grown = prefer(make_head(num_classes=2), 1.0)
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


def test_errors_are_summed_over_calls() -> None:
    """Random targets need a large lambda, clean ones a small one; the larger call decides."""
    x, random = make_hidden(300, 60), torch.randint(3, (300,), generator=torch.Generator().manual_seed(5))
    clean = (x @ (make_hidden(3, 60, seed=3) - 0.5).T).argmax(dim=1)
    large, small, both = make_head(60), make_head(60), make_head(60)
    for ridge, targets in ((large, random), (both, random), (small, clean[:40]), (both, clean[:40])):
        ridge.observe(x[: len(targets)].float(), targets)
        ridge.update_errors(x[: len(targets)].float(), targets)
    torch.testing.assert_close(both.errors, large.errors + small.errors)
    assert small.errors.argmin() < large.errors.argmin() == both.errors.argmin()
    assert both.strength == large.strength


@pytest.mark.parametrize(("smaller", "expected"), [(2.09, 10), (2.11, 11)])
def test_next_smaller_strength_is_used_if_nearly_as_good(smaller: float, expected: int) -> None:
    ridge = make_head()
    ridge.observe(make_hidden(4).float(), make_labels(4))
    ridge.errors.fill_(3)
    ridge.errors[9:13] = torch.tensor([2.05, smaller, 2.0, 2.04])
    assert ridge.strength == STRENGTHS[expected]


def test_a_single_image_has_no_held_out_error() -> None:
    ridge = make_head()
    ridge.update_errors(make_hidden(1).float(), make_labels(1))
    assert not ridge.errors.any()


def test_strength_is_larger_than_rounding_errors() -> None:
    """A singular G: ten images, a hundred features. The smallest lambda would leave only noise."""
    ridge = prefer(make_head(100), 1e-8)
    x, y = 30 * make_hidden(10, 100).float(), make_labels(10)
    ridge.observe(x, y)
    ridge.solve()
    assert 1e-8 < ridge.strength < 1
    torch.testing.assert_close(ridge(x), torch.nn.functional.one_hot(y).float(), rtol=0, atol=0.01)


@pytest.mark.parametrize("size", [1, 4, 7])
def test_packing_halves_the_size_and_preserves_the_lower_triangle(size: int) -> None:
    square = torch.randn(size, size, generator=torch.Generator().manual_seed(0))  # values above the diagonal do not matter
    packed = pack_symmetric(square)
    unpacked = unpack_symmetric(packed, size)
    assert packed.numel() <= (size + 1) * (size + 2) / 2
    assert torch.equal(unpacked, unpacked.T)
    assert torch.equal(unpacked.tril(), square.tril())
    assert torch.equal(unpack_symmetric(square, size), square)  # as older models were saved


def test_nearly_identical_images_have_a_solution() -> None:
    """Many nearly identical images accumulate rounding errors beyond the lower bound of lambda."""
    ridge, rng = prefer(make_head(width=40, num_classes=2), STRENGTHS[0]), torch.Generator().manual_seed(0)
    for _ in range(3000):
        ridge.observe(1 + 1e-4 * torch.randn(1, 40, generator=rng), torch.tensor([0]))
    ridge.gram.diagonal().sub_(2 * ridge.strength)  # as far below zero as rounding can push it
    with pytest.raises(torch.linalg.LinAlgError):
        torch.linalg.cholesky(ridge.gram.double() + ridge.strength * torch.eye(40, dtype=torch.float64))
    ridge.solve()
    assert ridge.weight.isfinite().all()


@pytest.mark.parametrize(("relative_strength", "dtype"), [(0.1, torch.float32), (1e-5, torch.float64)], ids=["usual", "tiny"])
def test_weights_are_those_of_float64_with_the_factor_that_suffices(relative_strength: float, dtype: torch.dtype) -> None:
    """On a CPU a factor in float32 suffices if lambda is not tiny; entries above the diagonal blocks of G are never read."""
    x, y = make_hidden(300, 1100).float(), make_labels(300)
    ridge = RidgeHead(1100, relative_strength)
    ridge.grow(3, torch.Generator())
    ridge.observe(x, y)
    system = ridge.gram.double() + ridge.strength * torch.eye(1100, dtype=torch.float64)
    expected = torch.linalg.solve(system, ridge.sums.double().T).T
    ridge.gram[:1024, 1024:] = torch.nan
    factor = ridge.solve()
    assert factor.dtype == dtype
    torch.testing.assert_close(ridge.weight.double(), expected, rtol=1e-6, atol=1e-7 * float(expected.abs().max()))


def test_factor_in_float32_is_given_up_where_corrections_do_not_converge(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("caprompt.methods.components.ridge._MAX_CORRECTIONS", 0)
    ridge = RidgeHead(12, 0.1)
    ridge.grow(3, torch.Generator())
    ridge.observe(make_hidden(40).float(), make_labels(40))
    assert ridge.solve().dtype == torch.float64
    assert ridge.weight.any()


def test_left_out_outputs_hardly_depend_on_the_precision_of_the_factor(monkeypatch: pytest.MonkeyPatch) -> None:
    features, labels = make_hidden(30, 8).float(), make_labels(30)
    outputs = []
    for max_rounding in (0.01, 0.0):
        monkeypatch.setattr("caprompt.methods.components.ridge._MAX_ROUNDING", max_rounding)
        ridge = RandomRidge(8, 50, 0.1)
        ridge.grow(3, torch.Generator().manual_seed(1))
        factor = ridge.partial_fit([(features, labels)], torch.Generator())
        assert factor is not None
        assert factor.dtype == (torch.float32 if max_rounding else torch.float64)
        outputs.append(ridge.leave_out(factor, [features], labels)(features))
    torch.testing.assert_close(*outputs, rtol=1e-4, atol=1e-4)


def test_outputs_follow_a_projection_that_is_drawn_anew() -> None:
    """It is converted to float64 once, and again after it has changed."""
    ridge = RandomRidge(8, 50, 0.1)
    ridge.grow(2, torch.Generator().manual_seed(1))
    ridge.ridge.weight.fill_(1)
    assert ridge(torch.ones(1, 8)).tolist() == ridge(torch.ones(1, 8)).tolist()
    ridge.set_width(4)
    hidden = F.relu(ridge.projection.double().sum(dim=0))
    torch.testing.assert_close(ridge(torch.ones(1, 4)), hidden.sum().float().expand(1, 2))


@pytest.mark.parametrize("invalid", [float("nan"), float("inf")])
def test_features_that_are_not_finite_are_refused(invalid: float) -> None:
    ridge, x = make_head(), make_hidden(6).float()
    x[2, 3] = invalid
    ridge.observe(x, make_labels(6))
    with pytest.raises(InputError, match="not finite"):
        ridge.solve()


def test_lambda_is_selected_on_a_fifth_of_at_most_1250_images_of_a_call() -> None:
    """The errors of a call of 1,500 images, computed by hand."""
    head = RandomRidge(6, 20)
    head.grow(3, torch.Generator().manual_seed(0))
    features, labels = make_hidden(1500, width=6).float(), make_labels(1500)
    head.partial_fit([(features, labels)], torch.Generator().manual_seed(1))
    subset = torch.randperm(1500, generator=torch.Generator().manual_seed(1))[:1250]
    hidden, targets = head.project(features[subset]).double(), F.one_hot(labels[subset], 3).double()
    expected = compute_held_out_errors(hidden[250:], targets[250:], hidden[:250], targets[:250])
    torch.testing.assert_close(head.ridge.errors, expected)


# -- lambda relative to the inputs ---------------------------------------------------------------------------------------------


def fit_relative(features: Tensor, labels: Tensor, calls: Sequence[int], classes: int = 3, strength: float = 0.1) -> RandomRidge:
    """Fit to features in calls that end at these positions."""
    head = RandomRidge(features.shape[1], 40, strength)
    head.grow(classes, torch.Generator().manual_seed(0))
    for start, end in zip([0, *calls], [*calls, len(labels)], strict=True):
        head.partial_fit([(features[start:end], labels[start:end])], torch.Generator())
    return head


@pytest.mark.parametrize("strength", [0.1, 2.0])
@pytest.mark.parametrize("count", [3, 90])
@pytest.mark.parametrize("scale", [0.01, 10.0])
def test_relative_lambda_is_a_factor_on_the_mean_squared_length(strength: float, count: int, scale: float) -> None:
    """For any number of images and any scale of the features."""
    features, labels = scale * make_hidden(count, 6).float(), make_labels(count)
    head = fit_relative(features, labels, [], strength=strength)
    hidden = head.project(features).double()
    expected = strength * float(hidden.square().sum(dim=1).mean())
    assert head.ridge.strength == pytest.approx(expected, rel=1e-5)
    weights = fit_sklearn_ridge(hidden, F.one_hot(labels, 3).double(), expected).coef_
    np.testing.assert_allclose(head.ridge.weight.numpy(), weights, rtol=1e-3, atol=1e-5 / scale)


@given(st.lists(st.integers(1, 29), max_size=4).map(sorted), st.integers(0, 2**32 - 1))
def test_relative_lambda_and_weights_do_not_depend_on_calls_or_order(calls: list[int], seed: int) -> None:
    features, labels = make_hidden(30, 6).float(), make_labels(30)
    at_once = fit_relative(features, labels, [])
    order = torch.randperm(30, generator=torch.Generator().manual_seed(seed))
    split = fit_relative(features[order], labels[order], calls)
    assert split.ridge.strength == pytest.approx(at_once.ridge.strength, rel=1e-5)
    torch.testing.assert_close(split.ridge.weight, at_once.ridge.weight, rtol=0, atol=1e-5)


def test_classes_that_arrive_later_have_the_same_relative_lambda() -> None:
    features, labels = make_hidden(30, 6).float(), make_labels(30).sort().values
    head = RandomRidge(6, 40, 0.1)
    for task, rows in enumerate(torch.arange(30).chunk(3)):
        head.grow(1, torch.Generator().manual_seed(0))
        head.partial_fit([(features[rows], labels[rows])], torch.Generator().manual_seed(task))
    at_once = fit_relative(features, labels, [])
    assert head.ridge.strength == pytest.approx(at_once.ridge.strength, rel=1e-5)
    torch.testing.assert_close(head.ridge.weight, at_once.ridge.weight, rtol=0, atol=1e-5)


def test_one_image_per_class_predicts_the_nearest_image() -> None:
    rng = torch.Generator().manual_seed(4)
    centers = 3 * torch.randn(8, 16, generator=rng)
    head = RandomRidge(16, 500, 0.1)
    head.grow(8, torch.Generator().manual_seed(0))
    head.partial_fit([(centers, torch.arange(8))], torch.Generator())
    labels = torch.arange(8).repeat(20)
    features = centers[labels] + 0.5 * torch.randn(160, 16, generator=rng)
    nearest = torch.cdist(features, centers).argmin(dim=1)
    assert torch.equal(nearest, labels), "the classes should be well separated"
    assert torch.equal(head(features).argmax(dim=1), nearest)


def test_relative_lambda_survives_saving() -> None:
    features, labels = make_hidden(30, 6).float(), make_labels(30)
    saved = {name: tensor.clone() for name, tensor in fit_relative(features[:20], labels[:20], []).state_dict().items()}
    loaded = RandomRidge(6, 40, 0.1)
    loaded.grow(3, torch.Generator().manual_seed(9))
    loaded.load_state_dict(saved)
    assert loaded.ridge.strength == fit_relative(features[:20], labels[:20], []).ridge.strength
    loaded.partial_fit([(features[20:], labels[20:])], torch.Generator())
    resumed = fit_relative(features, labels, [20])
    assert loaded.ridge.strength == resumed.ridge.strength
    assert torch.equal(loaded.ridge.weight, resumed.ridge.weight)


def test_held_out_selection_saves_no_count() -> None:
    """Otherwise models that were saved before there was one could not be loaded."""
    assert "ridge.count" not in RandomRidge(6, 40).state_dict()
    assert "ridge.count" in RandomRidge(6, 40, 0.1).state_dict()


@pytest.mark.parametrize("keep_features", [False, True])
def test_left_out_outputs_equal_those_of_a_fit_without_the_image(keep_features: bool) -> None:
    """Each image has two feature vectors in the regression, and both are left out."""
    rng = torch.Generator().manual_seed(0)
    first, second, labels = torch.randn(12, 8, generator=rng), torch.randn(12, 8, generator=rng), torch.arange(12) % 3

    def fit(selected: Tensor, strength: float) -> tuple[RandomRidge, Tensor]:
        ridge = RandomRidge(8, 20, strength, keep_features=keep_features, dtype=torch.float64)
        ridge.grow(3, torch.Generator().manual_seed(1))
        ridge.partial_fit([(first[selected], labels[selected])], rng)
        factor = ridge.partial_fit([(second[selected], labels[selected])], rng)
        assert factor is not None
        return ridge, factor

    everything = torch.ones(12, dtype=torch.bool)
    ridge, factor = fit(everything, 0.1)
    other = torch.randn(12, 8, generator=rng)  # features of the same images that are not part of the regression
    left_out = list(map(ridge.leave_out(factor, [first, second], labels), [first, second, other]))
    strength = ridge.ridge.strength
    for image in range(12):
        others = everything.clone()
        others[image] = False
        refit, _ = fit(others, 0.1)
        own = float(refit.ridge.gram.diagonal().sum()) / int(refit.ridge.count)
        refit.ridge.relative_strength = strength / own  # lambda is relative to the images, so it would change with them
        refit.ridge.solve()
        for outputs, features in zip(left_out, (first, second, other), strict=True):
            torch.testing.assert_close(
                outputs[image], refit.ridge(refit.project(features[image : image + 1]))[0], rtol=1e-8, atol=1e-8
            )


def test_left_out_outputs_of_a_regression_on_these_images_alone() -> None:
    rng = torch.Generator().manual_seed(0)
    features, labels = torch.randn(9, 8, generator=rng), torch.arange(9) % 3
    ridge = RandomRidge(8, 20, 0.1, dtype=torch.float64)
    ridge.grow(3, torch.Generator().manual_seed(1))
    factor = ridge.partial_fit([(features, labels)], rng)
    assert factor is not None
    with_factor = ridge.leave_out(factor, [features], labels)(features)
    torch.testing.assert_close(
        ridge.compute_left_out_alone([features], labels, ridge.ridge.relative_strength or 0.0), with_factor, rtol=1e-8, atol=1e-8
    )


def test_kept_features_give_the_same_weights_as_sums_and_can_be_dropped() -> None:
    rng = torch.Generator().manual_seed(0)
    features, labels = torch.randn(30, 8, generator=rng), torch.arange(30) % 3

    def fit(keep: bool, selected: Tensor, classes: Tensor, num_classes: int) -> RandomRidge:
        ridge = RandomRidge(8, 20, 0.1, keep_features=keep, dtype=torch.float64)
        ridge.grow(num_classes, torch.Generator().manual_seed(1))
        ridge.partial_fit([(selected, classes)], rng)
        return ridge

    kept = fit(True, features, labels, 3)
    torch.testing.assert_close(kept.ridge.weight, fit(False, features, labels, 3).ridge.weight, rtol=1e-10, atol=1e-12)
    assert "ridge.gram" in kept.state_dict()
    assert kept.state_dict()["ridge.gram"].numel() == 0
    kept.forget_kept(1)
    assert set(kept.kept_labels.tolist()) == {0, 1}
    assert len(kept.kept_features) == 20


# -- sums of parts -------------------------------------------------------------------------------------------------------------


def make_exact(features: Tensor, labels: Tensor, size: int = 1, strength: float | None = 0.1) -> list[RandomRidge]:
    """Fit float64 regressions of as many processes to features in batches of 5, which they share."""
    pairs = list(zip(features.split(5), labels.split(5), strict=True))

    def fit(communicator: ThreadGroup) -> RandomRidge:
        head = RandomRidge(features.shape[1], 40, strength, dtype=torch.float64)
        head.grow(3, torch.Generator().manual_seed(0))
        own = pairs[communicator.rank :: size]
        head.partial_fit(own[: len(own) // 2], torch.Generator().manual_seed(1), communicator)
        head.partial_fit(own[len(own) // 2 :], torch.Generator().manual_seed(2), communicator)
        return head

    return run_in_threads(size, fit)


def assert_same_regression(one: RandomRidge, other: RandomRidge) -> None:
    assert one.ridge.strength == pytest.approx(other.ridge.strength, rel=1e-12)
    largest = other.ridge.weight.abs().max()
    torch.testing.assert_close(one.ridge.weight, other.ridge.weight, rtol=0, atol=1e-10 * float(largest))


@pytest.mark.parametrize("size", [1, 2, 7])
def test_processes_that_share_the_images_of_two_calls_get_the_regression_of_all_of_them(size: int) -> None:
    features, labels = make_hidden(70, 6).float(), make_labels(70)
    expected = fit_relative(features.double(), labels, [])  # by one call
    reference = RandomRidge(6, 40, 0.1, dtype=torch.float64)
    reference.grow(3, torch.Generator().manual_seed(0))
    reference.partial_fit([(features, labels)], torch.Generator())
    for head in make_exact(features, labels, size):
        assert_same_regression(head, reference)
        assert int(head.ridge.count) == 70
    torch.testing.assert_close(reference.ridge.weight.float(), expected.ridge.weight.float(), rtol=1e-3, atol=1e-5)


def test_held_out_images_are_the_same_for_any_number_of_processes() -> None:
    features, labels = make_hidden(60, 6).float(), make_labels(60)
    pairs = list(zip(features.split(5), labels.split(5), strict=True))

    def fit(communicator: ThreadGroup) -> RandomRidge:
        head = RandomRidge(6, 40)
        head.grow(3, torch.Generator().manual_seed(0))
        head.partial_fit(pairs[communicator.rank :: communicator.size], torch.Generator().manual_seed(1), communicator)
        return head

    (alone,) = run_in_threads(1, fit)
    for head in run_in_threads(3, fit):
        assert torch.equal(head.ridge.errors, alone.ridge.errors)
        assert head.ridge.strength == alone.ridge.strength


def test_kept_features_are_those_of_all_processes_in_their_order() -> None:
    features, labels = make_hidden(20, 6).float(), make_labels(20)

    def fit(communicator: ThreadGroup) -> RandomRidge:
        head = RandomRidge(6, 40, 0.1, keep_features=True)
        head.grow(3, torch.Generator().manual_seed(0))
        pairs = list(zip(features.split(4), labels.split(4), strict=True))
        head.partial_fit(pairs[communicator.rank :: communicator.size], torch.Generator(), communicator)
        return head

    for head in run_in_threads(2, fit):
        assert torch.equal(head.kept_features, features)
        assert torch.equal(head.kept_labels, labels)


@given(st.integers(0, 2**32 - 1), st.sampled_from([2, 7]))
def test_merged_shards_in_any_order_are_the_regression_of_all_images(seed: int, shards: int) -> None:
    features, labels = make_hidden(63, 6).float(), make_labels(63)
    order = torch.randperm(63, generator=torch.Generator().manual_seed(seed))
    (expected,) = make_exact(features, labels)
    (merged,) = make_exact(features[:0], labels[:0])
    for rows in order.tensor_split(shards):
        (part,) = make_exact(features[rows], labels[rows])
        merged.merge(part, torch.arange(3), len(rows))
    merged.refit()
    assert_same_regression(merged, expected)
    (base,) = make_exact(features[order[:9]], labels[order[:9]])
    merged.merge(base, torch.arange(3), 9, sign=-1)
    merged.refit()
    (rest,) = make_exact(features[order[9:]], labels[order[9:]])
    assert_same_regression(merged, rest)


def test_float64_sums_have_only_a_lower_triangle() -> None:
    """In several blocks of rows: what is above the blocks stays zero, and what is below is the product."""
    ridge = RidgeHead(2500, 0.1, torch.float64)
    ridge.grow(3, torch.Generator())
    hidden = make_hidden(4, 2500)
    ridge.observe(hidden, make_labels(4))
    torch.testing.assert_close(ridge.gram.tril(), (hidden.T @ hidden).tril())
    assert not ridge.gram[:1024, 1024:].any()
