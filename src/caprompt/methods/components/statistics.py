"""Feature statistics stored per class instead of its images.

Kinds of statistics and their memory per class (r `rank`, k `centroids`; 4 bytes per value):

| kind             | stored                           | values / class  | D = 192  | D = 768  |
|------------------|----------------------------------|-----------------|----------|----------|
| `mean`           | mean                             | D               | 0.8 kB   | 3.1 kB   |
| `variance`       | mean, variance of each feature   | 2 D             | 1.5 kB   | 6.1 kB   |
| `multi-centroid` | mean; count, mean and variance   |                 |          |          |
|                  | of k centroids                   | D + k (2 D + 1) | 8.5 kB   | 33.8 kB  |
| `low-rank`       | mean, r directions, residual     |                 |          |          |
|                  | variance                         | D (2 + r)       | 13.8 kB  | 55.3 kB  |
| `covariance`     | mean, full covariance (default)  | D (1 + D)       | 148.2 kB | 2,362 kB |

plus the number of images. Raw moments are stored, so later images of a class are merged with the
earlier ones (exactly for `mean`, `variance` and `covariance`). Few images give poor moments: when
sampling, the variance of each class is shrunk towards the average variance of all classes, as if
`PRIOR` further images had had that; one image is enough to sample from.

Shapes: C classes, D width, n images of a class.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable

import torch
from torch import Tensor, nn

from caprompt.utils.communication import Communicator

__all__ = ["Covariance", "LowRank", "MultiCentroid", "Sampler", "Statistics", "Variance"]

Sampler = Callable[[int, torch.Generator], Tensor]  # (features per class, rng) -> (C, each, D)

PRIOR = 2.0  # weight of the average variance, in images
JITTER = 1e-4  # variance added to every feature, so that every covariance has a Cholesky factor


class Statistics(nn.Module):
    """Number of images and mean of each class. Subclasses add a model of the variance."""

    def __init__(self, width: int, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        self.width = width
        self.register_buffer("count", torch.zeros(0, dtype=dtype))
        self.register_buffer("mean", torch.zeros(0, width, dtype=dtype))
        for name, shape in self.spread_shapes().items():
            self.register_buffer(name, torch.zeros(0, *shape, dtype=dtype))

    count: Tensor  # (C,)
    mean: Tensor  # (C, D)

    @property
    def feature_statistics(self) -> tuple[str, ...]:
        """Names of the buffers: all of them describe the images of a class."""
        return ("count", "mean", *self.spread_shapes())

    def spread_shapes(self) -> dict[str, tuple[int, ...]]:
        """Return names and per-class shapes of the buffers that a subclass adds."""
        return {}

    def grow(self, num_classes: int) -> None:
        """Add empty statistics for new classes."""
        for name, buffer in list(self.named_buffers()):
            setattr(self, name, torch.cat([buffer, buffer.new_zeros(num_classes, *buffer.shape[1:])]))

    def observe_means(self, batches: Iterable[tuple[Tensor, Tensor]], communicator: Communicator) -> None:
        """Add the images of a call of which each process has a share, where only means are stored; alone, as `observe_batches`."""
        assert not self.spread_shapes(), "a spread needs all images of a class at once"
        if communicator.size == 1:
            self.observe_batches(batches)
            return
        sums, counts = torch.zeros_like(self.mean, dtype=torch.float64), torch.zeros_like(self.count, dtype=torch.float64)
        for features, labels in batches:
            sums.index_add_(0, labels, features.double())
            counts += torch.bincount(labels, minlength=len(counts))
        communicator.add_up(sums)
        communicator.add_up(counts)
        self.merge_means(sums, counts)

    def merge_means(self, sums: Tensor, counts: Tensor) -> None:
        """Add sums of features (C, D) over so many images of each class (C,), in float64; negative ones are taken out again."""
        known = self.count.double()
        total = known + counts
        merged = (known.unsqueeze(1) * self.mean.double() + sums) / total.clamp_min(1).unsqueeze(1)
        changed = counts != 0
        self.mean[changed], self.count[changed] = merged[changed].to(self.mean), total[changed].to(self.count)

    def merge(self, other: Statistics, classes: Tensor, sign: int = 1) -> None:
        """Add the means of other statistics, whose class i is `classes[i]` here, or take them out again (`sign=-1`)."""
        assert not self.spread_shapes(), "a spread is not a sum"
        own = other.count.double()
        sums, counts = torch.zeros_like(self.mean, dtype=torch.float64), torch.zeros_like(self.count, dtype=torch.float64)
        sums.index_add_(0, classes, sign * own.unsqueeze(1) * other.mean.double())
        counts.index_add_(0, classes, sign * own)
        self.merge_means(sums, counts)

    def observe_batches(self, batches: Iterable[tuple[Tensor, Tensor]]) -> None:
        """Add the features (B, D) and classes (B,) of all images of a call."""
        pairs = [(features.double(), labels) for features, labels in batches]
        features = torch.cat([features for features, _ in pairs])
        labels = torch.cat([labels for _, labels in pairs])
        for label in labels.unique().tolist():
            self.observe(label, features[labels == label])

    def observe(self, label: int, features: Tensor) -> None:
        """Add features (n, D) of one class (Chan's parallel update, in float64)."""
        before, added = float(self.count[label]), features.shape[0]
        old_mean, new_mean = self.mean[label].double(), features.mean(dim=0)
        shift = new_mean - old_mean if before else torch.zeros_like(new_mean)
        self.merge_spread(label, features - new_mean, shift, before)
        self.mean[label] = old_mean + shift * added / (before + added) if before else new_mean
        self.count[label] = before + added

    def merge_spread(self, label: int, centered: Tensor, shift: Tensor, before: float) -> None:
        """Merge the spread of new images with that of the `before` earlier ones.

        `centered` (n, D) are the new features minus their mean, `shift` (D,) is how far that lies
        from the earlier mean.
        """
        return

    def centers(self) -> tuple[Tensor, Tensor]:
        """Return centers (C, k, D) of each class and their numbers of images (C, k), maybe 0."""
        return self.mean.unsqueeze(1), self.count.unsqueeze(1)

    def make_sampler(self) -> Sampler:
        """Return a function that samples features of every class: (C, each, D). Here, the mean."""
        return lambda each, generator: self.mean.unsqueeze(1).expand(-1, each, -1)

    def _noise(self, each: int, width: int, generator: torch.Generator) -> Tensor:
        """Draw standard normal noise (C, each, width) on the device of the statistics."""
        shape = (len(self.mean), each, width)
        return torch.randn(shape, generator=generator, device=self.mean.device, dtype=self.mean.dtype)

    def _shrink(self, variance: Tensor) -> tuple[Tensor, Tensor]:
        """Return the factor (C,) on each class's own variance and the variance (C, D) to add."""
        count = self.count.clamp_min(1)
        pooled = (count.unsqueeze(1) * variance).sum(dim=0) / (count - 1).sum().clamp_min(1)  # (D,)
        total = count - 1 + PRIOR
        return count / total, PRIOR / total.unsqueeze(1) * pooled

    def bytes_per_class(self) -> int:
        """Return the memory of one class in bytes."""
        return sum(math.prod(buffer.shape[1:]) * buffer.element_size() for buffer in self.buffers())


class Variance(Statistics):
    """Mean and variance of each feature."""

    variance: Tensor  # (C, D)

    def spread_shapes(self) -> dict[str, tuple[int, ...]]:
        return {"variance": (self.width,)}

    def merge_spread(self, label: int, centered: Tensor, shift: Tensor, before: float) -> None:
        added = centered.shape[0]
        total = (
            before * self.variance[label].double() + centered.square().sum(dim=0) + _merge_weight(before, added) * shift.square()
        )
        self.variance[label] = total / (before + added)

    def make_sampler(self) -> Sampler:
        keep, prior = self._shrink(self.variance)
        deviation = (keep.unsqueeze(1) * self.variance + prior + JITTER).sqrt().unsqueeze(1)  # (C, 1, D)

        def sample(each: int, generator: torch.Generator) -> Tensor:
            return self.mean.unsqueeze(1) + self._noise(each, self.width, generator) * deviation

        return sample


class Covariance(Statistics):
    """Mean and full covariance."""

    covariance: Tensor  # (C, D, D)

    def spread_shapes(self) -> dict[str, tuple[int, ...]]:
        return {"covariance": (self.width, self.width)}

    def merge_spread(self, label: int, centered: Tensor, shift: Tensor, before: float) -> None:
        self.covariance[label] = _merge_covariances(self.covariance[label].double(), centered, shift, before)

    def make_sampler(self) -> Sampler:
        keep, prior = self._shrink(self.covariance.diagonal(dim1=1, dim2=2))
        spread = keep[:, None, None] * self.covariance + torch.diag_embed(prior + JITTER)
        factor: Tensor = torch.linalg.cholesky(spread.double()).to(self.mean)  # (C, D, D)

        def sample(each: int, generator: torch.Generator) -> Tensor:
            return self.mean.unsqueeze(1) + self._noise(each, self.width, generator) @ factor.transpose(1, 2)

        return sample


class LowRank(Statistics):
    """Mean, principal directions of the covariance, and residual variance of each feature."""

    directions: Tensor  # (C, r, D), each scaled by its standard deviation
    rest: Tensor  # residual variance, (C, D)

    def __init__(self, width: int, rank: int) -> None:
        self.rank = min(rank, width)
        super().__init__(width)

    def spread_shapes(self) -> dict[str, tuple[int, ...]]:
        return {"directions": (self.rank, self.width), "rest": (self.width,)}

    def merge_spread(self, label: int, centered: Tensor, shift: Tensor, before: float) -> None:
        directions = self.directions[label].double()
        known = directions.T @ directions + self.rest[label].double().diag()
        covariance = _merge_covariances(known, centered, shift, before)
        values, vectors = torch.linalg.eigh(covariance)  # ascending
        strongest = vectors[:, -self.rank :] * values[-self.rank :].clamp_min(0).sqrt()  # (D, r)
        self.directions[label] = strongest.T
        self.rest[label] = (covariance.diagonal() - strongest.square().sum(dim=1)).clamp_min(0)

    def make_sampler(self) -> Sampler:
        keep, prior = self._shrink(self.rest + self.directions.square().sum(dim=1))
        directions = self.directions * keep.sqrt()[:, None, None]
        deviation = (keep.unsqueeze(1) * self.rest + prior + JITTER).sqrt().unsqueeze(1)  # (C, 1, D)

        def sample(each: int, generator: torch.Generator) -> Tensor:
            along = self._noise(each, self.rank, generator) @ directions
            return self.mean.unsqueeze(1) + along + self._noise(each, self.width, generator) * deviation

        return sample


class MultiCentroid(Statistics):
    """Several centroids per class, each with its number of images and the variance around it."""

    share: Tensor  # number of images, (C, k)
    centroid: Tensor  # (C, k, D)
    variance: Tensor  # (C, k, D)

    def __init__(self, width: int, centroids: int) -> None:
        self.centroids = centroids
        super().__init__(width)

    def spread_shapes(self) -> dict[str, tuple[int, ...]]:
        k = self.centroids
        return {"share": (k,), "centroid": (k, self.width), "variance": (k, self.width)}

    def observe(self, label: int, features: Tensor) -> None:
        """Cluster new features and merge them with known clusters until `centroids` remain."""
        known = [
            (float(share), center.double(), variance.double())
            for share, center, variance in zip(self.share[label], self.centroid[label], self.variance[label], strict=True)
            if share > 0
        ]
        clusters = [*known, *self._cluster(features)]
        while len(clusters) > self.centroids:
            clusters = _merge_nearest(clusters)
        super().observe(label, features)
        for name in ("share", "centroid", "variance"):
            getattr(self, name)[label] = 0
        for slot, (share, center, variance) in enumerate(clusters):
            self.share[label, slot], self.centroid[label, slot], self.variance[label, slot] = share, center, variance

    def _cluster(self, features: Tensor) -> list[tuple[float, Tensor, Tensor]]:
        """Run k-means with a fixed seed; return (count, center, variance) of each cluster."""
        from sklearn.cluster import KMeans

        k = min(self.centroids, features.unique(dim=0).shape[0])
        nearest = torch.from_numpy(KMeans(k, n_init=1, random_state=0).fit(features.cpu().numpy()).labels_)
        groups = [features[nearest.to(features.device) == cluster] for cluster in range(k)]
        return [(float(len(group)), group.mean(dim=0), group.var(dim=0, correction=0)) for group in groups]

    def centers(self) -> tuple[Tensor, Tensor]:
        return self.centroid, self.share

    def make_sampler(self) -> Sampler:
        within = (self.share.unsqueeze(2) * self.variance).sum(dim=1) / self.count.clamp_min(1).unsqueeze(1)  # (C, D)
        keep, prior = self._shrink(within)
        deviation = (keep[:, None, None] * self.variance + prior.unsqueeze(1) + JITTER).sqrt()  # (C, k, D)
        rows = torch.arange(len(self.mean), device=self.mean.device).unsqueeze(1)

        def sample(each: int, generator: torch.Generator) -> Tensor:
            picks = torch.multinomial(self.share, each, replacement=True, generator=generator)  # (C, each)
            return self.centroid[rows, picks] + self._noise(each, self.width, generator) * deviation[rows, picks]

        return sample


def _merge_weight(before: float, added: int) -> float:
    """Return the weight of the squared distance of two groups' means in their joint scatter."""
    return before * added / (before + added)


def _merge_covariances(known: Tensor, centered: Tensor, shift: Tensor, before: float) -> Tensor:
    """Return the (biased) covariance of `before` earlier images and the new ones together."""
    added = centered.shape[0]
    scatter = before * known + centered.T @ centered + _merge_weight(before, added) * torch.outer(shift, shift)
    return scatter / (before + added)


def _merge_nearest(clusters: list[tuple[float, Tensor, Tensor]]) -> list[tuple[float, Tensor, Tensor]]:
    """Merge the two clusters whose union adds the least variance (Ward), exactly."""
    centers = torch.stack([center for _, center, _ in clusters])
    shares = torch.tensor([share for share, _, _ in clusters], dtype=centers.dtype)
    cost = torch.cdist(centers, centers).square() * (shares[:, None] * shares / (shares[:, None] + shares)).to(centers.device)
    cost.fill_diagonal_(math.inf)
    i, j = sorted(divmod(int(cost.argmin()), len(clusters)))
    (n, a, u), (m, b, v) = clusters[i], clusters[j]
    union = (n + m, (n * a + m * b) / (n + m), (n * u + m * v) / (n + m) + n * m / (n + m) ** 2 * (a - b).square())
    return [*clusters[:i], *clusters[i + 1 : j], *clusters[j + 1 :], union]
