from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from caprompt.calibration import (
    ENOUGH,
    Calibration,
    bend,
    dump_evidence,
    fit_calibration,
    load_evidence,
    make_evidence,
)
from caprompt.metrics import compute_calibration_error, compute_reliability
from caprompt.outputs import count_plausible


def draw(
    count: int, factor: float, background: float, num_classes: int = 10, seed: int = 0, curvature: float = 0.0
) -> tuple[Tensor, Tensor]:
    """Return logits, and labels drawn from the probabilities that the true parameters give."""
    rng = torch.Generator().manual_seed(seed)
    logits = 4 * torch.randn(count, num_classes, generator=rng, dtype=torch.float64)
    probabilities = Calibration(factor, background, images=1, curvature=curvature).apply(logits).exp()
    return logits, torch.multinomial(probabilities, 1, generator=rng).squeeze(1)


@pytest.mark.parametrize(
    ("factor", "background", "curvature"), [(1.0, 0.0, 0.0), (0.3, 0.0, 0.0), (0.5, 0.1, 0.0), (2.0, 0.2, 0.4), (0.5, 0.0, 1.6)]
)
def test_parameters_are_recovered(factor: float, background: float, curvature: float) -> None:
    fitted, _ = fit_calibration([make_evidence(*draw(4000, factor, background, curvature=curvature))])
    assert fitted.factor == pytest.approx(factor, rel=0.3)
    assert fitted.background == pytest.approx(background, abs=0.05)
    logits, labels = draw(8000, factor, background, seed=1, curvature=curvature)
    scores, predicted = fitted.apply(logits).exp().max(dim=1)
    assert compute_calibration_error(compute_reliability(scores.tolist(), (predicted == labels).tolist())) < 3


def test_order_of_classes_is_kept_and_probabilities_sum_to_one() -> None:
    logits, _ = draw(200, 1, 0)
    applied = Calibration(0.4, 0.1, images=9, curvature=0.8).apply(logits)
    assert torch.equal(applied.argsort(dim=1), logits.argsort(dim=1))
    assert bend(1000 * logits, 3.2).isfinite().all()
    torch.testing.assert_close(applied.exp().sum(dim=1), torch.ones(200, dtype=torch.float64))
    assert Calibration().apply(logits) is logits  # without a fit nothing changes, bit for bit


def test_newest_images_count_and_earlier_ones_only_where_they_are_needed() -> None:
    old, many = make_evidence(*draw(2000, 3.0, 0.0)), make_evidence(*draw(ENOUGH, 0.3, 0.0, seed=1))
    few = make_evidence(*draw(20, 0.3, 0.0, seed=2))
    fitted, needed = fit_calibration([old, many])
    assert fitted.factor == pytest.approx(0.3, rel=0.3)
    assert len(needed) == 1
    fitted, needed = fit_calibration([old, few])
    assert fitted.factor > 1  # 980 images' worth of the old evidence outweigh 20
    assert len(needed) == 2


def test_too_few_images_give_no_fit_but_are_kept() -> None:
    evidence = [make_evidence(*draw(3, 1, 0, seed=seed)) for seed in range(3)]
    fitted, needed = fit_calibration(evidence[:2])
    assert fitted == Calibration()
    assert fit_calibration([*needed, evidence[2]])[0].images == 9


def test_round_trip_through_files() -> None:
    fitted, needed = fit_calibration([make_evidence(*draw(50, 0.5, 0.0)), make_evidence(*draw(60, 0.5, 0.0, seed=1))])
    again = Calibration.from_dict(fitted.as_dict())
    assert (again.factor, again.background, again.images) == (fitted.factor, fitted.background, fitted.images)
    np.testing.assert_allclose(again.quantiles, fitted.quantiles, atol=1e-6)
    np.testing.assert_allclose(again.masses, fitted.masses, atol=1e-6)
    loaded = load_evidence(dump_evidence(needed))
    assert fit_calibration(loaded)[0] == fitted
    assert load_evidence({}) == []
    assert Calibration.from_dict({}) == Calibration()
    assert Calibration().as_dict() == {}


def test_threshold_gives_the_share_of_false_alarms() -> None:
    fitted, _ = fit_calibration([make_evidence(*draw(4000, 0.4, 0.05))])
    logits, _ = draw(4000, 0.4, 0.05, seed=1)
    scores = fitted.apply(logits).exp().amax(dim=1)
    for share in (0.01, 0.05, 0.2):
        threshold = fitted.get_threshold(share)
        assert threshold is not None
        assert float((scores < threshold).double().mean()) == pytest.approx(share, abs=0.02)
    assert Calibration().get_threshold(0.05) is None


@pytest.mark.parametrize("coverage", [0.8, 0.9, 0.97])
def test_prediction_sets_hold_the_true_class_as_often_as_asked_for(coverage: float) -> None:
    fitted, _ = fit_calibration([make_evidence(*draw(4000, 0.2, 0.05))])
    logits, labels = draw(4000, 0.2, 0.05, seed=1)
    scores, order = fitted.apply(logits).exp().sort(dim=1, descending=True)
    sizes = count_plausible(scores, fitted.get_mass(coverage))
    rank = (order == labels.unsqueeze(1)).double().argmax(dim=1)
    assert float((rank < sizes).double().mean()) == pytest.approx(coverage, abs=0.02)
    naive = count_plausible(scores, coverage)  # the last class of a set overshoots, so that sets are too large
    assert sizes.sum() < naive.sum()
    assert Calibration().get_mass(coverage) == coverage  # of a model that was saved before there was a table


def test_tables_are_of_the_probabilities_that_all_calls_are_fitted_to() -> None:
    old, (logits, labels) = make_evidence(*draw(600, 3.0, 0.0)), draw(300, 0.3, 0.0, seed=1)
    fitted, _ = fit_calibration([old, make_evidence(logits, labels, [old])])
    alone, _ = fit_calibration([make_evidence(logits, labels)])
    medians = [float(each.apply(logits).exp().amax(dim=1).median()) for each in (fitted, alone)]
    assert abs(medians[0] - medians[1]) > 0.05  # so that it matters
    assert fitted.quantiles[50] == pytest.approx(medians[0], abs=0.01)


def test_quantiles_lie_between_honest_and_optimistic_ones() -> None:
    logits, labels = draw(500, 0.5, 0.0)
    honest, both, sharper = (
        fit_calibration([make_evidence(logits, labels, optimistic=optimistic)])[0].quantiles[50]
        for optimistic in (None, 2 * logits, 4 * logits)
    )
    assert honest < both < sharper


def test_drift_is_noticed_only_where_many_images_score_low() -> None:
    calibration = Calibration(1.0, 0.0, 100, tuple(np.linspace(0.3, 1, 101)))
    usual = np.linspace(0.3, 1, 100).tolist()
    assert calibration.describe_drift(usual) is None
    warning = calibration.describe_drift([0.2] * 50 + usual[:50])
    assert warning is not None
    assert warning.startswith("60% of these 100 images score as low as only 10%")
    assert calibration.describe_drift([0.2] * 10) is None  # too few to tell
    assert Calibration().describe_drift([0.2] * 100) is None
