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


def chance(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def cloud(count: int, seed: int = 0, centre: float = 0.0) -> Tensor:
    """Correlated features, float64."""
    mix = torch.randn(WIDTH, WIDTH, generator=chance(99), dtype=torch.float64)
    return torch.randn(count, WIDTH, generator=chance(seed), dtype=torch.float64) @ mix + centre


def observed(kind: str, *parts: Tensor) -> Statistics:
    statistics = KINDS[kind]()
    statistics.grow(1)
    for part in parts:
        statistics.observe(0, part)
    return statistics


@pytest.mark.parametrize("kind", ["mean", "variance", "covariance"])
def test_two_sittings_equal_one(kind: str) -> None:
    features = cloud(40)
    one, two = observed(kind, features), observed(kind, features[:13], features[13:])
    for name, buffer in one.named_buffers():
        torch.testing.assert_close(buffer, dict(two.named_buffers())[name], rtol=1e-5, atol=1e-5)


def test_moments_are_the_definition() -> None:
    features = cloud(30)
    statistics = observed("covariance", features)
    assert isinstance(statistics, Covariance)
    torch.testing.assert_close(statistics.mean[0].double(), features.mean(dim=0), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(statistics.covariance[0].double(), torch.cov(features.T, correction=0), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("kind", ["variance", "covariance", "low-rank"])
def test_draws_have_the_moments_of_the_class(kind: str) -> None:
    features = cloud(4000, centre=3.0)
    drawn = observed(kind, features).sampler()(20000, chance(1))[0].double()
    torch.testing.assert_close(drawn.mean(dim=0), features.mean(dim=0), rtol=0, atol=0.1)
    torch.testing.assert_close(drawn.var(dim=0), features.var(dim=0), rtol=0.06, atol=0)
    if kind == "covariance":
        torch.testing.assert_close(torch.cov(drawn.T), torch.cov(features.T), rtol=0.1, atol=0.35)


def test_low_rank_keeps_the_strongest_directions() -> None:
    direction = torch.nn.functional.normalize(torch.randn(WIDTH, generator=chance(5), dtype=torch.float64), dim=0)
    features = 5 * torch.randn(500, 1, generator=chance(6), dtype=torch.float64) * direction
    statistics = observed("low-rank", features + 0.01 * cloud(500))
    assert isinstance(statistics, LowRank)
    strongest = torch.nn.functional.normalize(statistics.directions[0, -1].double(), dim=0)
    assert abs(float(strongest @ direction)) > 0.999


def test_full_rank_low_rank_is_the_covariance() -> None:
    features = cloud(50)
    statistics = LowRank(WIDTH, rank=WIDTH)
    statistics.grow(1)
    statistics.observe(0, features[:20])
    statistics.observe(0, features[20:])
    known = statistics.directions[0].T @ statistics.directions[0] + statistics.rest[0].diag()
    torch.testing.assert_close(known.double(), torch.cov(features.T, correction=0), rtol=1e-4, atol=1e-4)


def test_centroids_find_separate_groups_and_survive_merging() -> None:
    groups = [0.1 * cloud(20, seed) + offset for seed, offset in enumerate((-30.0, 0.0, 30.0))]
    statistics = observed("multi-centroid", torch.cat(groups), torch.cat([group[:5] for group in groups]))
    assert isinstance(statistics, MultiCentroid)
    assert sorted(statistics.share[0].tolist()) == [25.0, 25.0, 25.0]
    assert statistics.centroid[0].mean(dim=1).sort().values.tolist() == pytest.approx([-30, 0, 30], abs=1.0)
    drawn = statistics.sampler()(300, chance(2))[0].mean(dim=1)
    assert {round(float(value) / 30) for value in drawn} == {-1, 0, 1}


def test_centres_are_the_mean_or_the_centroids() -> None:
    features = cloud(2)
    rows, images_there = observed("covariance", features).centres()
    torch.testing.assert_close(rows[0], features.mean(dim=0, keepdim=True).float())
    assert images_there.tolist() == [[2]]
    rows, images_there = observed("multi-centroid", features).centres()
    assert sorted(images_there[0].tolist()) == [0, 1, 1], "two images fill two of three centroids"
    torch.testing.assert_close(rows[0][images_there[0] > 0].sum(dim=0), features.sum(dim=0).float())


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("count", [1, 2])
def test_one_or_two_images_are_enough(kind: str, count: int) -> None:
    """A class with hardly any images borrows the spread of the others."""
    statistics = KINDS[kind]()
    statistics.grow(2)
    statistics.observe(0, cloud(200))
    statistics.observe(1, cloud(count, seed=3, centre=50.0))
    drawn = statistics.sampler()(4000, chance(4))
    assert drawn.isfinite().all()
    torch.testing.assert_close(drawn[1].double().mean(dim=0), cloud(count, seed=3, centre=50.0).mean(dim=0), rtol=0, atol=0.5)
    if kind in ("variance", "covariance", "low-rank"):
        spread, usual = drawn[1].double().var(dim=0).mean(), cloud(200).var(dim=0).mean()
        assert 0.3 * usual < spread < 2.5 * usual


@pytest.mark.parametrize("kind", KINDS)
def test_the_very_first_class_may_have_one_image(kind: str) -> None:
    drawn = observed(kind, cloud(1)).sampler()(50, chance())
    assert drawn.isfinite().all()
    assert (drawn.double() - cloud(1)).abs().max() < 6 * JITTER**0.5


@pytest.mark.parametrize("kind", KINDS)
def test_memory_per_class_is_as_documented(kind: str) -> None:
    width, rank, k = 192, 16, 5
    numbers = {"mean": width, "variance": 2 * width, "covariance": width * (1 + width)}
    numbers |= {"low-rank": width * (2 + rank), "multi-centroid": width + k * (2 * width + 1)}
    make = {"mean": Statistics, "variance": Variance, "covariance": Covariance}
    built = (
        LowRank(width, rank) if kind == "low-rank" else MultiCentroid(width, k) if kind == "multi-centroid" else make[kind](width)
    )
    built.grow(3)
    assert built.bytes_per_class() == 4 * (numbers[kind] + 1)


def test_growth_keeps_what_is_known() -> None:
    statistics = observed("covariance", cloud(10))
    before = statistics.mean.clone()
    statistics.grow(2)
    assert statistics.mean.shape == (3, WIDTH)
    assert torch.equal(statistics.mean[:1], before)


def test_batches_are_sorted_into_classes() -> None:
    statistics = Statistics(WIDTH)
    statistics.grow(2)
    features, labels = cloud(9), torch.tensor([0, 1, 1, 0, 1, 0, 0, 1, 1])
    statistics.observe_all(zip(features.split(4), labels.split(4), strict=True))
    assert statistics.count.tolist() == [4, 5]
    torch.testing.assert_close(statistics.mean[1].double(), features[labels == 1].mean(dim=0), rtol=1e-5, atol=1e-5)
