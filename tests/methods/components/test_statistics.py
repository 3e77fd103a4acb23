from __future__ import annotations

import pytest
import torch
from torch import Tensor

from caprompt.methods.components.statistics import JITTER, Covariance, LowRank, MultiCentroid, Statistics, Variance

WIDTH = 6
KINDS = {
    "mean": lambda: Statistics(WIDTH),
    "variance": lambda: Variance(WIDTH),
    "covariance": lambda: Covariance(WIDTH),
    "low-rank": lambda: LowRank(WIDTH, rank=2),
    "multi-centroid": lambda: MultiCentroid(WIDTH, centroids=3),
}


def make_rng(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def sample_features(count: int, seed: int = 0, center: float = 0.0) -> Tensor:
    """Sample correlated features, float64."""
    mix = torch.randn(WIDTH, WIDTH, generator=make_rng(99), dtype=torch.float64)
    return torch.randn(count, WIDTH, generator=make_rng(seed), dtype=torch.float64) @ mix + center


def make_statistics(kind: str, *parts: Tensor) -> Statistics:
    statistics = KINDS[kind]()
    statistics.grow(1)
    for part in parts:
        statistics.observe(0, part)
    return statistics


@pytest.mark.parametrize("kind", ["mean", "variance", "covariance"])
def test_two_updates_equal_one(kind: str) -> None:
    features = sample_features(40)
    one, two = make_statistics(kind, features), make_statistics(kind, features[:13], features[13:])
    for name, buffer in one.named_buffers():
        torch.testing.assert_close(buffer, dict(two.named_buffers())[name], rtol=1e-5, atol=1e-5)


def test_moments_by_definition() -> None:
    features = sample_features(30)
    statistics = make_statistics("covariance", features)
    assert isinstance(statistics, Covariance)
    torch.testing.assert_close(statistics.mean[0].double(), features.mean(dim=0), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(statistics.covariance[0].double(), torch.cov(features.T, correction=0), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("kind", ["variance", "covariance", "low-rank"])
def test_samples_have_the_moments_of_the_class(kind: str) -> None:
    features = sample_features(4000, center=3.0)
    samples = make_statistics(kind, features).make_sampler()(20000, make_rng(1))[0].double()
    torch.testing.assert_close(samples.mean(dim=0), features.mean(dim=0), rtol=0, atol=0.1)
    torch.testing.assert_close(samples.var(dim=0), features.var(dim=0), rtol=0.06, atol=0)
    if kind == "covariance":
        torch.testing.assert_close(torch.cov(samples.T), torch.cov(features.T), rtol=0.1, atol=0.35)


def test_low_rank_keeps_the_strongest_directions() -> None:
    direction = torch.nn.functional.normalize(torch.randn(WIDTH, generator=make_rng(5), dtype=torch.float64), dim=0)
    features = 5 * torch.randn(500, 1, generator=make_rng(6), dtype=torch.float64) * direction
    statistics = make_statistics("low-rank", features + 0.01 * sample_features(500))
    assert isinstance(statistics, LowRank)
    strongest = torch.nn.functional.normalize(statistics.directions[0, -1].double(), dim=0)
    assert abs(float(strongest @ direction)) > 0.999


def test_low_rank_with_full_rank_equals_the_covariance() -> None:
    features = sample_features(50)
    statistics = LowRank(WIDTH, rank=WIDTH)
    statistics.grow(1)
    statistics.observe(0, features[:20])
    statistics.observe(0, features[20:])
    known = statistics.directions[0].T @ statistics.directions[0] + statistics.rest[0].diag()
    torch.testing.assert_close(known.double(), torch.cov(features.T, correction=0), rtol=1e-4, atol=1e-4)


def test_centroids_find_separate_groups_also_after_merging() -> None:
    groups = [0.1 * sample_features(20, seed) + offset for seed, offset in enumerate((-30.0, 0.0, 30.0))]
    statistics = make_statistics("multi-centroid", torch.cat(groups), torch.cat([group[:5] for group in groups]))
    assert isinstance(statistics, MultiCentroid)
    assert sorted(statistics.share[0].tolist()) == [25.0, 25.0, 25.0]
    assert statistics.centroid[0].mean(dim=1).sort().values.tolist() == pytest.approx([-30, 0, 30], abs=1.0)
    samples = statistics.make_sampler()(300, make_rng(2))[0].mean(dim=1)
    assert {round(float(value) / 30) for value in samples} == {-1, 0, 1}


def test_centers_are_the_mean_or_the_centroids() -> None:
    features = sample_features(2)
    rows, counts = make_statistics("covariance", features).centers()
    torch.testing.assert_close(rows[0], features.mean(dim=0, keepdim=True).float())
    assert counts.tolist() == [[2]]
    rows, counts = make_statistics("multi-centroid", features).centers()
    assert sorted(counts[0].tolist()) == [0, 1, 1], "two images occupy two of three centroids"
    torch.testing.assert_close(rows[0][counts[0] > 0].sum(dim=0), features.sum(dim=0).float())


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("count", [1, 2])
def test_one_or_two_images_are_enough(kind: str, count: int) -> None:
    """A class with very few images uses the variance of the others."""
    statistics = KINDS[kind]()
    statistics.grow(2)
    statistics.observe(0, sample_features(200))
    statistics.observe(1, sample_features(count, seed=3, center=50.0))
    samples = statistics.make_sampler()(4000, make_rng(4))
    assert samples.isfinite().all()
    torch.testing.assert_close(
        samples[1].double().mean(dim=0), sample_features(count, seed=3, center=50.0).mean(dim=0), rtol=0, atol=0.5
    )
    if kind in ("variance", "covariance", "low-rank"):
        spread, usual = samples[1].double().var(dim=0).mean(), sample_features(200).var(dim=0).mean()
        assert 0.3 * usual < spread < 2.5 * usual


@pytest.mark.parametrize("kind", KINDS)
def test_the_very_first_class_may_have_one_image(kind: str) -> None:
    samples = make_statistics(kind, sample_features(1)).make_sampler()(50, make_rng())
    assert samples.isfinite().all()
    assert (samples.double() - sample_features(1)).abs().max() < 6 * JITTER**0.5


@pytest.mark.parametrize("kind", KINDS)
def test_memory_per_class_is_as_documented(kind: str) -> None:
    width, rank, k = 192, 16, 5
    num_values = {"mean": width, "variance": 2 * width, "covariance": width * (1 + width)}
    num_values |= {"low-rank": width * (2 + rank), "multi-centroid": width + k * (2 * width + 1)}
    make = {"mean": Statistics, "variance": Variance, "covariance": Covariance}
    built = (
        LowRank(width, rank) if kind == "low-rank" else MultiCentroid(width, k) if kind == "multi-centroid" else make[kind](width)
    )
    built.grow(3)
    assert built.bytes_per_class() == 4 * (num_values[kind] + 1)


def test_growing_keeps_the_old_classes() -> None:
    statistics = make_statistics("covariance", sample_features(10))
    before = statistics.mean.clone()
    statistics.grow(2)
    assert statistics.mean.shape == (3, WIDTH)
    assert torch.equal(statistics.mean[:1], before)


def test_batches_are_split_by_class() -> None:
    statistics = Statistics(WIDTH)
    statistics.grow(2)
    features, labels = sample_features(9), torch.tensor([0, 1, 1, 0, 1, 0, 0, 1, 1])
    statistics.observe_batches(zip(features.split(4), labels.split(4), strict=True))
    assert statistics.count.tolist() == [4, 5]
    torch.testing.assert_close(statistics.mean[1].double(), features[labels == 1].mean(dim=0), rtol=1e-5, atol=1e-5)


def test_variance_is_shrunk_to_the_average_with_the_weight_of_two_images() -> None:
    """Two classes of 4 and 3 images, by hand: the unbiased pooled variance counts as two further images of each class."""
    statistics = Variance(1)
    statistics.grow(2)
    statistics.observe(0, torch.tensor([[-3.0], [-1.0], [1.0], [3.0]], dtype=torch.float64))  # sum of squares 20
    statistics.observe(1, torch.tensor([[-1.0], [0.0], [1.0]], dtype=torch.float64))  # sum of squares 2
    pooled = (20 + 2) / (3 + 2)
    expected = torch.tensor([(20 + 2 * pooled) / (3 + 2), (2 + 2 * pooled) / (2 + 2)]) + JITTER
    drawn = statistics.make_sampler()(1, make_rng())  # (2, 1, 1), with means of zero
    noise = torch.randn(2, 1, 1, generator=make_rng())
    torch.testing.assert_close((drawn / noise).square().flatten(), expected)
