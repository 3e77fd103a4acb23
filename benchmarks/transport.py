"""How EvoPrompt's two routes of neuron alignment differ: in time, and in the weights and tokens that come out of the fusion.

    pip install 'caprompt[transport]'
    python benchmarks/transport.py               # writes benchmarks/results/transport.json; about two minutes on one core

One block's generator of a ViT-B (16 hidden neurons, 5 tokens of 768: plans of 16 x 16 and 3,840 x 3,840). The reference is a random
start; the new weights are the reference plus noise of so many times the reference's own spread. All neurons are equally important,
so half of what the new weights changed is kept. Entropic transport (Sinkhorn, the same masses as 'exact') stands for comparison.
Differences are relative to what the fusion changed at all under the exact plan.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path
from unittest.mock import patch

import torch
from torch import Tensor

from caprompt.methods import evoprompt
from caprompt.methods.components.heads import linear_init

HERE = Path(__file__).parent
WIDTH, TOKENS, HIDDEN = 768, 5, 16
ENTROPY = 0.01
Pair = tuple[Tensor, Tensor]  # weights down (h, D) and up (n D, h)


def entropic_plan(cost: Tensor, mass: Tensor, reference_mass: Tensor) -> Tensor:
    """The plan with an entropy term, 200 iterations of Sinkhorn."""
    import ot

    source, target = (part.double() / part.double().sum() for part in (mass, reference_mass))
    plan = ot.sinkhorn(source.numpy(), target.numpy(), cost.numpy(), reg=ENTROPY, numItermax=200, warn=False)
    return torch.from_numpy(plan)


def fused(new: Pair, reference: Pair, route: evoprompt.Route) -> Pair:
    """Half way from the reference to the aligned new weights."""
    first = evoprompt.alignment(new[0], reference[0], route)
    reordered = new[1] @ first
    second = evoprompt.alignment(reordered, reference[1], route, mass=new[1].abs().sum(dim=1))
    return (reference[0] + first.T @ new[0]) / 2, (reference[1] + second.T @ reordered) / 2


def tokens(weights: Pair, queries: Tensor) -> Tensor:
    """What a generator makes of queries, (B, n D)."""
    return (queries @ weights[0].T).relu() @ weights[1].T


def relative(found: Tensor, exact: Tensor, reference: Tensor) -> float:
    """Distance from the exact result, relative to how far that is from the reference."""
    return round(float((found - exact).norm() / (exact - reference).norm()), 4)


def timed(make: Callable[[], Pair]) -> tuple[Pair, float]:
    """A result and the seconds it took."""
    began = time.perf_counter()
    return make(), round(time.perf_counter() - began, 2)


def measure(noise: float) -> dict[str, dict[str, float]]:
    """Time and differences of each route for weights that have moved so far."""
    chance = torch.Generator().manual_seed(0)
    reference = linear_init((HIDDEN, WIDTH), WIDTH, chance), linear_init((TOKENS * WIDTH, HIDDEN), HIDDEN, chance)
    down, up = (weight + noise * weight.std() * torch.randn(weight.shape, generator=chance) for weight in reference)
    new = down, up
    queries = torch.randn(256, WIDTH, generator=chance)
    results = {"exact": timed(lambda: fused(new, reference, "exact")), "matching": timed(lambda: fused(new, reference, "matching"))}
    with patch.object(evoprompt, "exact_plan", entropic_plan):
        results["entropic"] = timed(lambda: fused(new, reference, "exact"))
    exact, before = results["exact"][0], tokens(reference, queries)
    return {
        route: {
            "seconds": seconds,
            "down differs": relative(weights[0], exact[0], reference[0]),
            "up differs": relative(weights[1], exact[1], reference[1]),
            "tokens differ": relative(tokens(weights, queries), tokens(exact, queries), before),
        }
        for route, (weights, seconds) in results.items()
    }


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, default=HERE / "results" / "transport.json")
    args = parser.parse_args()
    figures = {}
    for noise in (0.1, 0.3, 1.0):
        figures[f"noise {noise}"] = measure(noise)
        for route, row in figures[f"noise {noise}"].items():
            print(f"noise {noise:<4} {route:<9}", *(f"{name} {value:<8}" for name, value in row.items()))
    args.json.write_text(json.dumps(figures, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
