"""Calibrated probabilities: scores that mean what they say, fitted without keeping images.

    p(c | x) = (1 - b) softmax(g(z(x)))_c + b / C,   g(z) = t (2 log 2 / k) log(log(1 + exp(k z)) / log 2)

z(x) are a model's logits for C classes. The temperature factor t corrects how sharp they are. The curvature k makes small logits
count less: those of a regression are estimates of probabilities, and of a hundred classes nearly all are zero but for noise, which
a plain softmax adds up. g is linear for large negative z, logarithmic for large z, and t z for k = 0. The background b says how
often the model is wrong however sure it seems. All of them keep the order of the classes. They minimize two negative
log-likelihoods of images that were scored honestly, that is by a model that did not learn from them (`Evidence`): that of an
image's class, and that of whether the predicted class is right. Each call of `learn` adds the likelihoods of its own images on a
grid of (k, t, b), so that neither images nor features are needed later.

Logits grow less sharp as classes are added, so the newest images count: those of earlier calls only where a call had few.

Prediction sets hold the most likely classes up to a certain mass. The last of them overshoots it, so a mass of 0.8 may be enough
for a coverage of 0.9. Which one, is looked up in a table that each call adds to as well.

Shapes: n images, C classes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np
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

CURVATURES = (0.0, 0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 12.8)  # candidates for k
FACTORS = torch.logspace(-2, 1.5, 120, dtype=torch.float64)  # candidates for t / (1 + k)
BACKGROUNDS = torch.tensor([0, 0.01, 0.02, 0.05, 0.1, 0.2], dtype=torch.float64)  # candidates for b
MAX_VALUES, MAX_FITTED = 200_000, 20_000  # logits and images that a fit looks at, about; more would not change it
GRID = (len(CURVATURES), len(FACTORS), len(BACKGROUNDS))
LEVELS = torch.linspace(0, 1, 101, dtype=torch.float64)  # at which quantiles and masses are stored
CHUNK_VALUES = 4_000_000  # that are computed at a time
ENOUGH = 1000  # images; evidence of earlier calls is used up to this number
ENOUGH_FOR_QUANTILES = 200  # the same for quantiles, which change more as classes are added
DRIFT_LEVEL, DRIFT_FACTOR, DRIFT_IMAGES = 0.1, 4, 30  # warn if 40 % of 30 images or more are below the quantile of 10 %
MIN_IMAGES = 8  # below this, a fit would be noise


@dataclass(frozen=True)
class Evidence:
    """How well each (k, t, b) explains the labels of n images that were scored honestly, and how sure the model was of them."""

    images: int
    losses: Tensor  # (8, 120, 6), summed negative log-likelihoods
    sureness: Tensor  # (101,), quantiles of the highest calibrated probability
    masses: Tensor  # (101,), of the classes in a prediction set, for coverages from 0 to 1


@dataclass(frozen=True)
class Calibration:
    """Fitted parameters; `quantiles` are those of the highest probability for images of learned classes.

    `masses` are what the probabilities of a prediction set have to add up to for coverages from 0 to 1.
    """

    factor: float = 1.0
    background: float = 0.0
    images: int = 0  # behind the fit; 0 if there was none
    quantiles: tuple[float, ...] = ()
    curvature: float = 0.0
    masses: tuple[float, ...] = ()

    def apply(self, logits: Tensor) -> Tensor:
        """Return calibrated log-probabilities (n, C); without a fit, the logits as they are.

        >>> logits = torch.tensor([[2.0, 0.0]])
        >>> Calibration(factor=0.5, background=0.1, images=9).apply(logits).exp()
        tensor([[0.7080, 0.2920]])
        """
        if not self.images:
            return logits
        bent = self.factor * bend(logits.double(), self.curvature)
        if not self.background:
            return bent.log_softmax(dim=1).to(logits.dtype)
        return bent.softmax(dim=1).mul_(1 - self.background).add_(self.background / logits.shape[1]).log_().to(logits.dtype)

    def as_dict(self) -> dict[str, Any]:
        """Return a dictionary for JSON, empty without a fit."""
        quantiles, masses = (tuple(round(each, 6) for each in values) for values in (self.quantiles, self.masses))
        return asdict(replace(self, quantiles=quantiles, masses=masses)) if self.images else {}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Calibration:
        """Return what `as_dict` was called on, up to the rounding of quantiles and masses."""
        return cls(**{**values, **{name: tuple(values.get(name, ())) for name in ("quantiles", "masses")}})

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

    def get_mass(self, coverage: float) -> float:
        """Return what the probabilities of a prediction set must add up to, so that it holds the true class that often."""
        return _compute_quantile(self.masses, coverage) if self.masses else coverage


def make_evidence(logits: Tensor, labels: Tensor, earlier: Sequence[Evidence] = (), optimistic: Tensor | None = None) -> Evidence:
    """Return the evidence of n honestly scored images: logits (n, C) and labels (n,).

    `earlier` is the evidence of calls before, which the probabilities behind quantiles and masses are fitted to as well. Where
    honest logits are of a weaker form of the model, `optimistic` are those (n, C) of the model as it predicts, but after it trained
    on these images; how sure it is of images of learned classes lies between the two, so quantiles are averaged.
    """
    logits, labels = logits.double(), labels.to(logits.device)
    step = max(1, logits.numel() // MAX_VALUES, len(labels) // MAX_FITTED)
    grid = [_compute_losses(bend(logits[::step], curvature), (1 + curvature) * FACTORS, labels[::step]) for curvature in CURVATURES]
    losses = torch.stack(grid).cpu() * len(labels) / len(labels[::step])
    own = Evidence(len(labels), losses, torch.zeros_like(LEVELS), torch.zeros_like(LEVELS))
    fitted = _fit(_add_up([*earlier, own]), len(labels))
    probabilities = fitted.apply(logits).exp()
    sureness = torch.quantile(probabilities.amax(dim=1).cpu(), LEVELS)
    if optimistic is not None:
        sureness = (sureness + torch.quantile(fitted.apply(optimistic.double()).exp().amax(dim=1).cpu(), LEVELS)) / 2
    return replace(own, sureness=sureness, masses=_compute_masses(probabilities, labels).cpu())


def fit_calibration(evidence: Sequence[Evidence]) -> tuple[Calibration, list[Evidence]]:
    """Fit to the evidence of all calls, the newest last. Return the fit and the evidence that a later one may still need."""
    needed = [each for each, weight in zip(evidence, _weigh(evidence, ENOUGH), strict=True) if weight > 0]
    images = sum(each.images for each in needed)
    if images < MIN_IMAGES:
        return Calibration(), needed
    quantiles = _average([each.sureness for each in needed], needed, ENOUGH_FOR_QUANTILES)
    masses = _average([each.masses for each in needed], needed, ENOUGH)
    return _fit(_add_up(needed), images, quantiles, masses), needed


def _weigh(evidence: Sequence[Evidence], enough: int) -> list[float]:
    """Return how much the evidence of each call counts: wholly from the newest backwards, until there are enough images.

    >>> calls = [Evidence(images, LEVELS, LEVELS, LEVELS) for images in (300, 80, 150)]
    >>> _weigh(calls, 200)
    [0.0, 0.625, 1.0]
    """
    weights = []
    for each in reversed(evidence):
        weights.append(min(1.0, enough / each.images))
        enough = max(0, enough - each.images)
    return weights[::-1]


def _average(tables: Sequence[Tensor], evidence: Sequence[Evidence], enough: int) -> tuple[float, ...]:
    """Return the mean of a table of each call, weighted by the images that count."""
    weights = [weight * each.images for weight, each in zip(_weigh(evidence, enough), evidence, strict=True)]
    shares = torch.tensor(weights, dtype=torch.float64) / sum(weights)
    return tuple((shares @ torch.stack(list(tables))).tolist())


def _add_up(evidence: Sequence[Evidence]) -> Tensor:
    """Return the sum of the losses of the newest images."""
    return torch.stack([weight * each.losses for each, weight in zip(evidence, _weigh(evidence, ENOUGH), strict=True)]).sum(dim=0)


def pool_evidence(evidence: Sequence[Evidence]) -> Evidence:
    """Return evidence of several models as if of one call; their order does not matter."""
    images = sum(each.images for each in evidence)
    losses = torch.stack([each.losses for each in evidence]).sum(dim=0)
    shares = torch.tensor([each.images / images for each in evidence], dtype=torch.float64)
    sureness, masses = (shares @ torch.stack(rows) for rows in ([e.sureness for e in evidence], [e.masses for e in evidence]))
    return Evidence(images, losses, sureness, masses)


def dump_evidence(evidence: Sequence[Evidence]) -> dict[str, Tensor]:
    """Return evidence as tensors for a file."""
    if not evidence:
        return {}
    return {
        "evidence.images": torch.tensor([each.images for each in evidence]),
        "evidence.losses": torch.stack([each.losses for each in evidence]),
        "evidence.sureness": torch.stack([each.sureness for each in evidence]),
        "evidence.masses": torch.stack([each.masses for each in evidence]),
    }


def load_evidence(tensors: Mapping[str, Tensor]) -> list[Evidence]:
    """Return what `dump_evidence` was given; nothing for an older model, whose evidence is on another grid."""
    if "evidence.images" not in tensors or tensors["evidence.losses"].shape[1:] != GRID:
        return []
    columns = (tensors[f"evidence.{name}"] for name in ("images", "losses", "sureness", "masses"))
    return [Evidence(int(images), *rows) for images, *rows in zip(*columns, strict=True)]


def bend(logits: Tensor, curvature: float) -> Tensor:
    """Return g(z) / t, which is z for a curvature of 0; the order of values is kept.

    >>> bend(torch.tensor([-4.0, 0.0, 4.0]), 1.0)
    tensor([-5.0497,  0.0000,  2.4362])
    """
    if not curvature:
        return logits
    # In float64, log(1 + exp(x)) underflows below -700; that of -600 is a probability of zero.
    bent = F.softplus((curvature * logits).clamp_min_(-600), threshold=40).log_()
    return bent.sub_(math.log(math.log(2))).mul_(2 * math.log(2) / curvature)


@lru_cache(maxsize=64)
def _compute_quantile(values: tuple[float, ...], level: float) -> float:
    return float(torch.quantile(torch.tensor(values, dtype=torch.float64), level))


def _compute_losses(logits: Tensor, factors: Tensor, labels: Tensor) -> Tensor:
    """Return the summed negative log-likelihoods for every t and b: (n, C) -> (120, 6)."""
    true = logits.gather(1, labels.unsqueeze(1)).squeeze(1)  # (n,)
    top, predicted = logits.max(dim=1)
    is_correct = predicted == labels
    backgrounds = BACKGROUNDS.to(logits)[:, None]  # (b, 1), for every t and image
    rows = []
    for part in factors.to(logits).split(max(1, CHUNK_VALUES // logits.numel())):
        normalizer = (part[:, None, None] * logits).logsumexp(dim=2)  # (t, n)
        likelihoods, sureness = ((part[:, None] * each - normalizer).exp().unsqueeze(1) for each in (true, top))  # (t, 1, n)
        of_class, of_top = (each + backgrounds * (1 / logits.shape[1] - each) for each in (likelihoods, sureness))  # (t, b, n)
        of_outcome = torch.where(is_correct, of_top, 1 - of_top)
        tiny = torch.finfo(of_class.dtype).tiny
        rows.append(-(of_class.clamp_min(tiny).log() + of_outcome.clamp_min(tiny).log()).sum(dim=2))
    return torch.cat(rows)


def _compute_masses(probabilities: Tensor, labels: Tensor) -> Tensor:
    """Return the mass up to which classes must be taken, the most likely first, for coverages from 0 to 1: (n, C) -> (101,).

    There are two estimates: how often the true class is among those that are taken, and how probable that is by the probabilities
    themselves. The larger mass is returned, so that sets rather hold the true class too often.
    """
    ranked, classes = probabilities.sort(dim=1, descending=True)
    before = ranked.cumsum(dim=1) - ranked  # (n, C): a class is taken if this is below the mass
    seen = before[classes == labels.unsqueeze(1)].sort().values  # (n,)
    levels = LEVELS.to(probabilities)
    by_labels = torch.quantile(seen, levels)
    order = before.flatten().argsort()
    covered = ranked.flatten()[order].cumsum(dim=0) / len(labels)  # by all classes that are taken up to a mass
    place = torch.searchsorted(covered, levels).clamp_max(len(order) - 1)
    masses = torch.maximum(by_labels, before.flatten()[order][place]).clamp(0, 1)
    masses[-1] = 1.0
    return masses


def _fit(losses: Tensor, images: int, quantiles: tuple[float, ...] = (), masses: tuple[float, ...] = ()) -> Calibration:
    # By NumPy: the function of that name in PyTorch imports SymPy, which takes seconds.
    curvature, factor, background = (int(index) for index in np.unravel_index(int(losses.argmin()), losses.shape))
    k = CURVATURES[curvature]
    return Calibration((1 + k) * float(FACTORS[factor]), float(BACKGROUNDS[background]), images, quantiles, k, masses)
