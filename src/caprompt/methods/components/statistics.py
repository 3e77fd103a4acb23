"""What is remembered of each class, instead of its images.

Kinds of statistics, and what a class costs (D width of the features, r `rank`, k `centroids`; 4 bytes a number):

| kind             | remembered                                  | numbers a class | D = 192, defaults | D = 768   |
|------------------|---------------------------------------------|-----------------|-------------------|-----------|
| `mean`           | the mean                                    | D               | 0.8 kB            | 3.1 kB    |
| `variance`       | mean, variance of each feature              | 2 D             | 1.5 kB            | 6.1 kB    |
| `multi-centroid` | k centroids with share and variance each    | D + k (2 D + 1) | 8.5 kB            | 33.8 kB   |
| `low-rank`       | mean, r directions, remaining variance      | D (2 + r)       | 13.8 kB           | 55.3 kB   |
| `covariance`     | mean, full covariance (default)             | D (1 + D)       | 148.2 kB          | 2,362 kB  |

plus the count of images. Raw moments are stored, so later images of a class merge with the earlier ones (exactly for `mean`,
`variance` and `covariance`). Few images make poor moments: when drawing, each class's spread is shrunk towards the average spread
of all classes, as if `PRIOR` further images had shown that; one image is enough to draw from.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable

import torch
from torch import Tensor, nn

__all__ = ["Covariance", "Draw", "LowRank", "MultiCentroid", "Statistics", "Variance"]

Draw = Callable[[int, torch.Generator], Tensor]  # features per class, chance -> (C, each, D)

PRIOR = 2.0  # images' worth of belief in the average spread
JITTER = 1e-4  # variance added everywhere, so that every covariance has a Cholesky factor


class Statistics(nn.Module):
    """What is remembered of each class. This one keeps the count and the mean; children add how the class spreads."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.width = width
        self.register_buffer("count", torch.zeros(0))
        self.register_buffer("mean", torch.zeros(0, width))
        for name, shape in self.spread_shapes().items():
            self.register_buffer(name, torch.zeros(0, *shape))

    count: Tensor  # (C,)
    mean: Tensor  # (C, D)

    def spread_shapes(self) -> dict[str, tuple[int, ...]]:
        """Names and per-class shapes of what a child remembers beside the mean."""
        return {}

    def grow(self, classes: int) -> None:
        """Room for further classes."""
        for name, buffer in list(self.named_buffers()):
            setattr(self, name, torch.cat([buffer, buffer.new_zeros(classes, *buffer.shape[1:])]))

    def observe_all(self, batches: Iterable[tuple[Tensor, Tensor]]) -> None:
        """Take in the features (B, D) and classes (B,) of all images of a call."""
        pairs = [(features.double(), labels) for features, labels in batches]
        features = torch.cat([features for features, _ in pairs])
        labels = torch.cat([labels for _, labels in pairs])
        for label in labels.unique().tolist():
            self.observe(label, features[labels == label])

    def observe(self, label: int, features: Tensor) -> None:
        """Merge the features (n, D) of one class with what is known of it (Chan's parallel update, in float64)."""
        before, added = float(self.count[label]), features.shape[0]
        old_mean, new_mean = self.mean[label].double(), features.mean(dim=0)
        shift = new_mean - old_mean if before else torch.zeros_like(new_mean)
        self.merge_spread(label, features - new_mean, shift, before)
        self.mean[label] = old_mean + shift * added / (before + added) if before else new_mean
        self.count[label] = before + added

    def merge_spread(self, label: int, centred: Tensor, shift: Tensor, before: float) -> None:
        """Merge the spread of new images (n, D, centred) whose mean lies `shift` away from that of the `before` earlier ones."""
        return

    def centres(self) -> tuple[Tensor, Tensor]:
        """Where each class lies, (C, k, D), and how many images each of its k places stands for, (C, k); some may be empty."""
        return self.mean.unsqueeze(1), self.count.unsqueeze(1)

    def sampler(self) -> Draw:
        """A function that draws features of every class, (C, each, D); what all draws share is computed once. Here the mean."""
        return lambda each, generator: self.mean.unsqueeze(1).expand(-1, each, -1)

    def noise(self, each: int, width: int, generator: torch.Generator) -> Tensor:
        """Standard normal numbers (C, each, width), drawn where the statistics are."""
        shape = (len(self.mean), each, width)
        return torch.randn(shape, generator=generator, device=self.mean.device, dtype=self.mean.dtype)

    def shrinkage(self, variance: Tensor) -> tuple[Tensor, Tensor]:
        """The factor (C,) that a class's own spread keeps, and the variance (C, D) that is added to it."""
        count = self.count.clamp_min(1)
        pooled = (count.unsqueeze(1) * variance).sum(dim=0) / (count - 1).sum().clamp_min(1)  # (D,)
        total = count - 1 + PRIOR
        return count / total, PRIOR / total.unsqueeze(1) * pooled

    def bytes_per_class(self) -> int:
        """Memory that one class takes."""
        return sum(math.prod(buffer.shape[1:]) * buffer.element_size() for buffer in self.buffers())


class Variance(Statistics):
    """Mean and the variance of each feature."""

    variance: Tensor  # (C, D)

    def spread_shapes(self) -> dict[str, tuple[int, ...]]:
        return {"variance": (self.width,)}

    def merge_spread(self, label: int, centred: Tensor, shift: Tensor, before: float) -> None:
        added = centred.shape[0]
        total = before * self.variance[label].double() + centred.square().sum(dim=0) + merge_weight(before, added) * shift.square()
        self.variance[label] = total / (before + added)

    def sampler(self) -> Draw:
        keep, prior = self.shrinkage(self.variance)
        deviation = (keep.unsqueeze(1) * self.variance + prior + JITTER).sqrt().unsqueeze(1)  # (C, 1, D)

        def draw(each: int, generator: torch.Generator) -> Tensor:
            return self.mean.unsqueeze(1) + self.noise(each, self.width, generator) * deviation

        return draw


class Covariance(Statistics):
    """Mean and full covariance."""

    covariance: Tensor  # (C, D, D)

    def spread_shapes(self) -> dict[str, tuple[int, ...]]:
        return {"covariance": (self.width, self.width)}

    def merge_spread(self, label: int, centred: Tensor, shift: Tensor, before: float) -> None:
        self.covariance[label] = merged_covariance(self.covariance[label].double(), centred, shift, before)

    def sampler(self) -> Draw:
        keep, prior = self.shrinkage(self.covariance.diagonal(dim1=1, dim2=2))
        spread = keep[:, None, None] * self.covariance + torch.diag_embed(prior + JITTER)
        factor: Tensor = torch.linalg.cholesky(spread.double()).to(self.mean)  # (C, D, D)

        def draw(each: int, generator: torch.Generator) -> Tensor:
            return self.mean.unsqueeze(1) + self.noise(each, self.width, generator) @ factor.transpose(1, 2)

        return draw


class LowRank(Statistics):
    """Mean, the strongest directions of the covariance, and the variance that they leave in each feature."""

    directions: Tensor  # (C, r, D), each scaled by its standard deviation
    rest: Tensor  # (C, D)

    def __init__(self, width: int, rank: int) -> None:
        self.rank = min(rank, width)
        super().__init__(width)

    def spread_shapes(self) -> dict[str, tuple[int, ...]]:
        return {"directions": (self.rank, self.width), "rest": (self.width,)}

    def merge_spread(self, label: int, centred: Tensor, shift: Tensor, before: float) -> None:
        directions = self.directions[label].double()
        known = directions.T @ directions + self.rest[label].double().diag()
        covariance = merged_covariance(known, centred, shift, before)
        values, vectors = torch.linalg.eigh(covariance)  # ascending
        strongest = vectors[:, -self.rank :] * values[-self.rank :].clamp_min(0).sqrt()  # (D, r)
        self.directions[label] = strongest.T
        self.rest[label] = (covariance.diagonal() - strongest.square().sum(dim=1)).clamp_min(0)

    def sampler(self) -> Draw:
        keep, prior = self.shrinkage(self.rest + self.directions.square().sum(dim=1))
        directions = self.directions * keep.sqrt()[:, None, None]
        deviation = (keep.unsqueeze(1) * self.rest + prior + JITTER).sqrt().unsqueeze(1)  # (C, 1, D)

        def draw(each: int, generator: torch.Generator) -> Tensor:
            along = self.noise(each, self.rank, generator) @ directions
            return self.mean.unsqueeze(1) + along + self.noise(each, self.width, generator) * deviation

        return draw


class MultiCentroid(Statistics):
    """Several centroids per class, each with its share of the images and the variance around it."""

    share: Tensor  # (C, k), in images
    centroid: Tensor  # (C, k, D)
    variance: Tensor  # (C, k, D)

    def __init__(self, width: int, centroids: int) -> None:
        self.centroids = centroids
        super().__init__(width)

    def spread_shapes(self) -> dict[str, tuple[int, ...]]:
        k = self.centroids
        return {"share": (k,), "centroid": (k, self.width), "variance": (k, self.width)}

    def observe(self, label: int, features: Tensor) -> None:
        """Cluster the new features, add the known clusters, and merge the nearest pairs until `centroids` are left."""
        known = [
            (float(share), centre.double(), variance.double())
            for share, centre, variance in zip(self.share[label], self.centroid[label], self.variance[label], strict=True)
            if share > 0
        ]
        clusters = [*known, *self.clusters_of(features)]
        while len(clusters) > self.centroids:
            clusters = merge_nearest(clusters)
        super().observe(label, features)
        for name in ("share", "centroid", "variance"):
            getattr(self, name)[label] = 0
        for slot, (share, centre, variance) in enumerate(clusters):
            self.share[label, slot], self.centroid[label, slot], self.variance[label, slot] = share, centre, variance

    def clusters_of(self, features: Tensor) -> list[tuple[float, Tensor, Tensor]]:
        """k-means with a fixed start: (images, centre, variance) of each cluster."""
        from sklearn.cluster import KMeans

        k = min(self.centroids, features.unique(dim=0).shape[0])
        nearest = torch.from_numpy(KMeans(k, n_init=1, random_state=0).fit(features.cpu().numpy()).labels_)
        groups = [features[nearest.to(features.device) == cluster] for cluster in range(k)]
        return [(float(len(group)), group.mean(dim=0), group.var(dim=0, correction=0)) for group in groups]

    def centres(self) -> tuple[Tensor, Tensor]:
        return self.centroid, self.share

    def sampler(self) -> Draw:
        within = (self.share.unsqueeze(2) * self.variance).sum(dim=1) / self.count.clamp_min(1).unsqueeze(1)  # (C, D)
        keep, prior = self.shrinkage(within)
        deviation = (keep[:, None, None] * self.variance + prior.unsqueeze(1) + JITTER).sqrt()  # (C, k, D)
        rows = torch.arange(len(self.mean), device=self.mean.device).unsqueeze(1)

        def draw(each: int, generator: torch.Generator) -> Tensor:
            picks = torch.multinomial(self.share, each, replacement=True, generator=generator)  # (C, each)
            return self.centroid[rows, picks] + self.noise(each, self.width, generator) * deviation[rows, picks]

        return draw


def merge_weight(before: float, added: int) -> float:
    """The weight of the squared distance of two groups' means in their common scatter."""
    return before * added / (before + added)


def merged_covariance(known: Tensor, centred: Tensor, shift: Tensor, before: float) -> Tensor:
    """The (biased) covariance of `before` earlier images and the new ones together."""
    added = centred.shape[0]
    scatter = before * known + centred.T @ centred + merge_weight(before, added) * torch.outer(shift, shift)
    return scatter / (before + added)


def merge_nearest(clusters: list[tuple[float, Tensor, Tensor]]) -> list[tuple[float, Tensor, Tensor]]:
    """Merge the two clusters whose union spreads least; count, mean and variance of the union are exact."""
    centres = torch.stack([centre for _, centre, _ in clusters])
    shares = torch.tensor([share for share, _, _ in clusters], dtype=centres.dtype)
    cost = torch.cdist(centres, centres).square() * (shares[:, None] * shares / (shares[:, None] + shares)).to(centres.device)
    cost.fill_diagonal_(math.inf)
    i, j = sorted(divmod(int(cost.argmin()), len(clusters)))
    (n, a, u), (m, b, v) = clusters[i], clusters[j]
    union = (n + m, (n * a + m * b) / (n + m), (n * u + m * v) / (n + m) + n * m / (n + m) ** 2 * (a - b).square())
    return [*clusters[:i], *clusters[i + 1 : j], *clusters[j + 1 :], union]
