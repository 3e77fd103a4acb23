"""Sums of the ridge regression at many projections: time, memory, size on disk, and how far they depend on the order of images.

    python benchmarks/sums.py                     # 10,000 projections; two minutes on two cores
    python benchmarks/sums.py --out /tmp          # elsewhere than in results/speed

Three ways to add images to the Gram matrix: all of it in float32, all of it in float64, and only its lower triangle in float64,
in blocks of rows, which is what a model with exact sums does. The regression is then solved from sums in float32 and in float64.
The same images are divided into 7 shards whose sums are added up in another order; the deviation is the largest change of a
weight, relative to the largest weight.
"""

from __future__ import annotations

import argparse
import resource
import time
from pathlib import Path
from typing import Any

import torch
from _common import SPEED, median_seconds, print_table, save
from torch import Tensor

from caprompt.methods.components.ridge import RidgeHead, pack_symmetric

STRENGTH = 0.1  # relative, as in the method `ridge`


def make_head(dtype: torch.dtype) -> RidgeHead:
    """Return an empty regression."""
    head = RidgeHead(args.projections, STRENGTH, dtype).to(DEVICE)
    head.grow(args.classes, torch.Generator())
    return head


def draw_images(count: int, seed: int) -> tuple[Tensor, Tensor]:
    """Draw projected features of images, and classes."""
    generator = torch.Generator().manual_seed(seed)
    features = torch.randn(count, 192, generator=generator)
    projection = torch.randn(192, args.projections, generator=torch.Generator().manual_seed(0))
    return (features @ projection).relu().to(DEVICE), torch.randint(args.classes, (count,), generator=generator).to(DEVICE)


def time_addition(name: str) -> float:
    """Return the milliseconds that adding one image to the Gram matrix takes, in batches of `batch`."""
    hidden, labels = draw_images(args.batch, 1)
    head = make_head(torch.float64)
    head.observe(hidden.double(), labels)
    own = hidden.to(torch.float32 if name.startswith("float32") else torch.float64)
    gram = own.new_zeros(args.projections, args.projections)

    def add() -> None:
        if name == "float64 lower triangle":
            head.observe(hidden, labels)
        else:
            gram.addmm_(own.T, own)

    return 1e3 * median_seconds(add, repeats=15, warm_up=2) / float(args.batch)


def fit(dtype: torch.dtype, shards: int, order: Tensor) -> RidgeHead:
    """Fit a regression to the same images, in shards whose sums are added up."""
    hidden, labels = draw_images(args.images, 2)
    total = make_head(dtype)
    for rows in order.to(DEVICE).tensor_split(shards):
        part = make_head(dtype)
        for chosen in rows.split(args.batch):
            part.observe(hidden[chosen], labels[chosen])
        total.merge(part, torch.arange(args.classes, device=DEVICE), len(rows))
    total.solve()
    return total


def measure_deviation(dtype: torch.dtype) -> dict[str, float]:
    """Return how far lambda and the weights move if images come in 7 shards and in another order."""
    once = fit(dtype, 1, torch.arange(args.images))
    shards = fit(dtype, 7, torch.randperm(args.images, generator=torch.Generator().manual_seed(3)))
    change = (once.weight.double() - shards.weight.double()).abs().max() / once.weight.double().abs().max()
    return {"lambda": abs(once.strength / shards.strength - 1), "weights": float(change)}


def measure_solve(dtype: torch.dtype) -> dict[str, float]:
    """Return the seconds and the most memory that solving takes, the Gram matrix itself included."""
    head = make_head(dtype)
    head.observe(*draw_images(args.images, 2))
    if DEVICE.type == "cuda":
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
    start = time.perf_counter()
    head.solve()
    if DEVICE.type == "cuda":
        torch.cuda.synchronize()
    seconds = time.perf_counter() - start
    peak = torch.cuda.max_memory_allocated() if DEVICE.type == "cuda" else 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return {"seconds": round(seconds, 2), "peak_mb": round(peak / 1e6)}


def main() -> None:
    """Measure, print, write."""
    # First, and the smaller one first, since the peak of a process includes all that came before.
    solve = {name: measure_solve(dtype) for name, dtype in (("float32", torch.float32), ("float64", torch.float64))}
    gram = torch.zeros(args.projections, args.projections, dtype=torch.float64)
    values = pack_symmetric(gram).numel()
    result: dict[str, Any] = {
        "projections": args.projections,
        "classes": args.classes,
        "images": args.images,
        "batch": args.batch,
        "milliseconds_per_image": {
            name: round(time_addition(name), 3) for name in ("float32 square", "float64 square", "float64 lower triangle")
        },
        "solve": solve,
        "memory_mb": {"float32": gram.numel() * 4 / 1e6, "float64": gram.numel() * 8 / 1e6},
        "on_disk_mb": {"float32": values * 4 / 1e6, "float64": values * 8 / 1e6},
        "deviation_in_7_shards": {
            str(dtype).removeprefix("torch."): measure_deviation(dtype) for dtype in (torch.float32, torch.float64)
        },
    }
    print_table("sums", result)
    save("sums" if DEVICE.type == "cpu" else "sums_gpu", result, args.out)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--projections", type=int, default=10_000)
    parser.add_argument("--classes", type=int, default=100)
    parser.add_argument("--images", type=int, default=1000)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--out", type=Path, default=SPEED)
    args = parser.parse_args()
    DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    main()
