"""Calibrated probabilities: scores that mean what they say, fitted without keeping images.

    p(c | x) = (1 - b) softmax(g(z(x)))_c + b / C,   g(z) = t (2 log 2 / k) log(log(1 + exp(k z)) / log 2)

z(x) are a model's logits for C classes. The temperature factor t corrects how sharp they are. The curvature k makes small logits
count less: those of a regression are estimates of probabilities, and of a hundred classes nearly all are zero but for noise, which
a plain softmax adds up. g is linear for large negative z, logarithmic for large z, and t z for k = 0. The background b says how
often the model is wrong however sure it seems. All of them keep the order of the classes. They minimize the negative log-likelihood
of images that were scored honestly, that is by a model that did not learn from them (`Evidence`): each call of `learn` adds the
likelihoods of its own images on a grid of (k, t, b), so that neither images nor features are needed later.

Logits grow less sharp as classes are added, so the newest images count: those of earlier calls only where a call had few.

Shapes: n images, C classes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

__all__ = [
    "GRID",
    "MIN_IMAGES",
    "Calibration",
    "Evidence",
    "bend",
    "dump_evidence",
    "fit_calibration",
    "load_evidence",
    "make_evidence",
    "pool_evidence",
]

CURVATURES = (0.0, 0.1, 0.2, 0.4, 0.8, 1.6, 3.2)  # candidates for k
FACTORS = torch.logspace(-2, 1.5, 71, dtype=torch.float64)  # candidates for t
BACKGROUNDS = torch.tensor([0, 0.01, 0.02, 0.05, 0.1, 0.2], dtype=torch.float64)  # candidates for b
MAX_VALUES = 400_000  # logits that a fit looks at; more would not change it
GRID = (len(CURVATURES), len(FACTORS), len(BACKGROUNDS))
LEVELS = torch.linspace(0, 1, 101, dtype=torch.float64)  # at which quantiles of the highest probability are stored
ENOUGH = 200  # images; evidence of earlier calls is used up to this number
DRIFT_LEVEL, DRIFT_FACTOR, DRIFT_IMAGES = 0.1, 4, 30  # warn if 40 % of 30 images or more are below the quantile of 10 %
MIN_IMAGES = 8  # below this, a fit would be noise


@dataclass(frozen=True)
class Evidence:
    """How well each (k, t, b) explains the labels of n images that were scored honestly, and how sure the model was of them."""

    images: int
    losses: Tensor  # (7, 71, 6), summed negative log-likelihoods
    sureness: Tensor  # (101,), quantiles of the highest calibrated probability


@dataclass(frozen=True)
class Calibration:
    """Fitted parameters; `quantiles` are those of the highest probability for images of learned classes."""

    factor: float = 1.0
    background: float = 0.0
    images: int = 0  # behind the fit; 0 if there was none
    quantiles: tuple[float, ...] = ()
    curvature: float = 0.0

    def apply(self, logits: Tensor) -> Tensor:
        """Return calibrated log-probabilities (n, C); without a fit, the logits as they are.

        >>> logits = torch.tensor([[2.0, 0.0]])
        >>> Calibration(factor=0.5, background=0.1, images=9).apply(logits).exp()
        tensor([[0.7080, 0.2920]])
        """
        if not self.images:
            return logits
        probabilities = (self.factor * bend(logits.double(), self.curvature)).softmax(dim=1)
        return ((1 - self.background) * probabilities + self.background / logits.shape[1]).log().to(logits.dtype)

    def as_dict(self) -> dict[str, Any]:
        """Return a dictionary for JSON, empty without a fit."""
        return asdict(replace(self, quantiles=tuple(round(each, 6) for each in self.quantiles))) if self.images else {}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Calibration:
        """Return what `as_dict` was called on, up to the rounding of the quantiles."""
        return cls(**{**values, "quantiles": tuple(values.get("quantiles", ()))})

    def describe_drift(self, scores: Sequence[float]) -> str | None:
        """Return a warning if images score so low that they can hardly be like those that were learned, or None.

        `scores` are the highest probabilities of all images of a call.
        """
        bound = self.get_threshold(DRIFT_LEVEL)
        if bound is None or len(scores) < DRIFT_IMAGES:
            return None
        share = sum(score < bound for score in scores) / len(scores)
        if share < DRIFT_FACTOR * DRIFT_LEVEL:
            return None
        return (
            f"{share:.0%} of these {len(scores)} images score as low as only {DRIFT_LEVEL:.0%} of images of learned classes would; "
            "they may show other classes, or look different from those that were learned"
        )

    def get_threshold(self, false_alarms: float) -> float | None:
        """Return the highest probability below which this share of images of learned classes falls; None without a fit."""
        if not self.quantiles:
            return None
        return _compute_quantile(self.quantiles, false_alarms)


def make_evidence(logits: Tensor, labels: Tensor, optimistic: Tensor | None = None) -> Evidence:
    """Return the evidence of n honestly scored images: logits (n, C) and labels (n,).

    `optimistic` are logits (m, C) of the model as it predicts, but after it trained on these images. Honest logits may be of a
    weaker form of the model; how sure it is of images of learned classes lies between the two, so quantiles are averaged.
    """
    logits, labels = logits.double().cpu(), labels.cpu()
    step = max(1, logits.numel() // MAX_VALUES)
    bent_logits = (bend(logits[::step], curvature) for curvature in CURVATURES)
    grid = [[_compute_losses(factor * bent, labels[::step]) for factor in FACTORS] for bent in bent_logits]
    losses = torch.stack([torch.stack(row) for row in grid]) * len(labels) / len(labels[::step])
    own = _fit(losses, len(labels), ())
    levels = [
        torch.quantile(own.apply(each.double().cpu()).exp().amax(dim=1), LEVELS)
        for each in (logits, optimistic)
        if each is not None
    ]
    return Evidence(len(labels), losses, torch.stack(levels).mean(dim=0))


def fit_calibration(evidence: Sequence[Evidence]) -> tuple[Calibration, list[Evidence]]:
    """Fit to the evidence of all calls, the newest last. Return the fit and the evidence that a later one may still need."""
    weights, needed = [], ENOUGH
    for each in reversed(evidence):
        weights.append(min(1.0, needed / each.images))
        needed = max(0, needed - each.images)
    used = [(each, weight) for each, weight in zip(evidence, reversed(weights), strict=True) if weight > 0]
    images = sum(each.images for each, _ in used)
    if images < MIN_IMAGES:
        return Calibration(), [each for each, _ in used]
    losses = torch.stack([weight * each.losses for each, weight in used]).sum(dim=0)
    shares = torch.tensor([weight * each.images for each, weight in used], dtype=torch.float64)
    quantiles = (shares / shares.sum()) @ torch.stack([each.sureness for each, _ in used])
    return _fit(losses, images, tuple(quantiles.tolist())), [each for each, _ in used]


def pool_evidence(evidence: Sequence[Evidence]) -> Evidence:
    """Return evidence of several models as if of one call; their order does not matter."""
    images = sum(each.images for each in evidence)
    losses = torch.stack([each.losses for each in evidence]).sum(dim=0)
    sureness = torch.stack([each.images / images * each.sureness for each in evidence]).sum(dim=0)
    return Evidence(images, losses, sureness)


def dump_evidence(evidence: Sequence[Evidence]) -> dict[str, Tensor]:
    """Return evidence as tensors for a file."""
    if not evidence:
        return {}
    return {
        "evidence.images": torch.tensor([each.images for each in evidence]),
        "evidence.losses": torch.stack([each.losses for each in evidence]),
        "evidence.sureness": torch.stack([each.sureness for each in evidence]),
    }


def load_evidence(tensors: Mapping[str, Tensor]) -> list[Evidence]:
    """Return what `dump_evidence` was given; nothing for an older model, whose evidence is on another grid."""
    if "evidence.images" not in tensors or tensors["evidence.losses"].shape[1:] != GRID:
        return []
    columns = (tensors[f"evidence.{name}"] for name in ("images", "losses", "sureness"))
    return [Evidence(int(images), losses, sureness) for images, losses, sureness in zip(*columns, strict=True)]


def bend(logits: Tensor, curvature: float) -> Tensor:
    """Return g(z) / t, which is z for a curvature of 0; the order of values is kept.

    >>> bend(torch.tensor([-4.0, 0.0, 4.0]), 1.0)
    tensor([-5.0497,  0.0000,  2.4362])
    """
    if not curvature:
        return logits
    scaled = curvature * logits
    # Far below zero, log(1 + exp(x)) is exp(x), which would underflow.
    bent = torch.where(scaled < -15, scaled, F.softplus(scaled.clamp_min(-15)).log())
    return 2 * math.log(2) / curvature * (bent - math.log(math.log(2)))


@lru_cache(maxsize=64)
def _compute_quantile(values: tuple[float, ...], level: float) -> float:
    return float(torch.quantile(torch.tensor(values, dtype=torch.float64), level))


def _compute_losses(logits: Tensor, labels: Tensor) -> Tensor:
    """Return the summed negative log-likelihood for every b: (6,)."""
    true = logits.softmax(dim=1).gather(1, labels.unsqueeze(1)).squeeze(1)  # (n,)
    mixed = (1 - BACKGROUNDS.unsqueeze(1)) * true + BACKGROUNDS.unsqueeze(1) / logits.shape[1]  # (6, n)
    return -mixed.clamp_min(torch.finfo(mixed.dtype).tiny).log().sum(dim=1)


def _fit(losses: Tensor, images: int, quantiles: tuple[float, ...]) -> Calibration:
    curvature, factor, background = (int(index) for index in torch.unravel_index(losses.argmin(), losses.shape))
    return Calibration(float(FACTORS[factor]), float(BACKGROUNDS[background]), images, quantiles, CURVATURES[curvature])
