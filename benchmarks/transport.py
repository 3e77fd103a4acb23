"""EvoPrompt's two routes of neuron alignment: their time, and how the fused weights and tokens differ.

    pip install 'caprompt[transport]'
    python benchmarks/transport.py               # writes results/accuracy/transport.json; about two minutes on one core

One block's generator of a ViT-B (16 hidden neurons, 5 tokens of 768: plans of 16 x 16 and 3,840 x 3,840). The reference is a random
initialization; the new weights are the reference plus noise in multiples of its standard deviation. All neurons are equally
important, so that fusion keeps half of the change. Entropic transport (Sinkhorn, the same masses as 'exact') is for comparison.
Differences are relative to the change by the fusion under the exact plan.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from pathlib import Path
from unittest.mock import patch

import torch
from _common import ACCURACY, save
from torch import Tensor

from caprompt.methods import evoprompt
from caprompt.methods.components.heads import linear_init

WIDTH, TOKENS, HIDDEN = 768, 5, 16
ENTROPY = 0.01
Pair = tuple[Tensor, Tensor]  # weights down (h, D) and up (n D, h)


def solve_entropic_plan(cost: Tensor, mass: Tensor, reference_mass: Tensor) -> Tensor:
    """Return the plan with an entropy term, by 200 Sinkhorn iterations."""
    import ot

    source, target = (part.double() / part.double().sum() for part in (mass, reference_mass))
    plan = ot.sinkhorn(source.numpy(), target.numpy(), cost.numpy(), reg=ENTROPY, numItermax=200, warn=False)
    return torch.from_numpy(plan)


def fuse(new: Pair, reference: Pair, route: evoprompt.Transport) -> Pair:
    """Return the mean of the reference and the aligned new weights."""
    first = evoprompt.align_neurons(new[0], reference[0], route)
    reordered = new[1] @ first
    second = evoprompt.align_neurons(reordered, reference[1], route, mass=new[1].abs().sum(dim=1))
    return (reference[0] + first.T @ new[0]) / 2, (reference[1] + second.T @ reordered) / 2


def generate_tokens(weights: Pair, queries: Tensor) -> Tensor:
    """Return the generator's tokens for queries, (B, n D)."""
    return (queries @ weights[0].T).relu() @ weights[1].T


def relative_distance(result: Tensor, exact: Tensor, reference: Tensor) -> float:
    """Return the distance from the exact result, relative to its distance from the reference."""
    return round(float((result - exact).norm() / (exact - reference).norm()), 4)


def measure_time(make: Callable[[], Pair]) -> tuple[Pair, float]:
    """Return a result and its time in seconds."""
    start = time.perf_counter()
    return make(), round(time.perf_counter() - start, 2)


def measure(noise: float) -> dict[str, dict[str, float]]:
    """Return time and differences of each route for weights with this much noise."""
    rng = torch.Generator().manual_seed(0)
    reference = linear_init((HIDDEN, WIDTH), WIDTH, rng), linear_init((TOKENS * WIDTH, HIDDEN), HIDDEN, rng)
    down, up = (weight + noise * weight.std() * torch.randn(weight.shape, generator=rng) for weight in reference)
    new = down, up
    queries = torch.randn(256, WIDTH, generator=rng)
    results = {
        "exact": measure_time(lambda: fuse(new, reference, "exact")),
        "matching": measure_time(lambda: fuse(new, reference, "matching")),
    }
    with patch.object(evoprompt, "solve_exact_plan", solve_entropic_plan):
        results["entropic"] = measure_time(lambda: fuse(new, reference, "exact"))
    exact, before = results["exact"][0], generate_tokens(reference, queries)
    return {
        route: {
            "seconds": seconds,
            "down differs": relative_distance(weights[0], exact[0], reference[0]),
            "up differs": relative_distance(weights[1], exact[1], reference[1]),
            "tokens differ": relative_distance(generate_tokens(weights, queries), generate_tokens(exact, queries), before),
        }
        for route, (weights, seconds) in results.items()
    }


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=ACCURACY)
    args = parser.parse_args()
    rows = {}
    for noise in (0.1, 0.3, 1.0):
        rows[f"noise {noise}"] = measure(noise)
        for route, row in rows[f"noise {noise}"].items():
            print(f"noise {noise:<4} {route:<9}", *(f"{name} {value:<8}" for name, value in row.items()))
    save("transport", {"rows": rows}, args.out)


if __name__ == "__main__":
    main()
