"""Does company change an answer in half precision? Labels and probabilities of the same images, alone and in batches.

    python benchmarks/invariance.py MODEL --dataset cifar100       # prints a table, writes benchmarks/results/invariance.json

Every image is asked alone in float32 first. Rows: each precision and batch size against that, and against the same precision alone.
`close` are the decisions that in half precision are made alone even in a batch (`answering.py`).
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import torch
from measuring import RESULTS, save
from torch import Tensor

from caprompt import ContinualClassifier
from caprompt.answering import CLOSE, Answering
from caprompt.data import Samples, load_dataset
from caprompt.feeding import Feeder


def probabilities(model: ContinualClassifier, samples: Samples, size: int, precision: str) -> Tensor:
    """(N, C), with batches of this size."""
    feeder = Feeder(model.backbone, model.device)
    with model.with_options({"precision": precision}):
        ask = Answering(model.method, size)
        shown = feeder.plain(samples, [0] * len(samples), model.method.options, size)
        return torch.cat([ask(images).logits.softmax(dim=1) for images, _ in shown])


def main() -> None:
    """Measure, print, write."""
    model = ContinualClassifier.load(args.model, backbone=args.backbone)
    samples = load_dataset(args.dataset).test.of_classes(model.classes).select(range(args.images))
    exact = probabilities(model, samples, 1, "fp32")
    rows: list[dict[str, Any]] = []
    for precision in args.precisions:
        alone = probabilities(model, samples, 1, precision)
        best = alone.topk(2, dim=1).values
        close = 100 * float((best[:, 0] - best[:, 1] < CLOSE).float().mean())
        for size in args.batches:
            found = probabilities(model, samples, size, precision)
            rows.append(
                {
                    "precision": precision,
                    "batch": size,
                    "close_percent": close,
                    **differences(found, alone, "alone"),
                    **differences(found, exact, "fp32"),
                }
            )
    print(f"{len(samples)} images")
    print("| precision | batch | close, % | labels unlike alone | largest difference | labels unlike fp32 | largest difference |")
    print("|---|--:|--:|--:|--:|--:|--:|")
    for row in rows:
        cells = [f"{row[f'{what}_{against}']:.3g}" for against in ("alone", "fp32") for what in ("labels", "difference")]
        print(f"| {row['precision']} | {row['batch']} | {row['close_percent']:.2f} | {' | '.join(cells)} |")
    save("invariance", {"images": len(samples), "rows": rows}, args.out)


def differences(one: Tensor, other: Tensor, name: str) -> dict[str, float]:
    """How many labels differ, and the largest difference of a probability."""
    labels = int((one.argmax(dim=1) != other.argmax(dim=1)).sum())
    return {f"labels_{name}": labels, f"difference_{name}": float((one - other).abs().max())}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("--backbone", type=Path)
    parser.add_argument("--dataset", default="cifar100")
    parser.add_argument("--images", type=int, default=10_000)
    parser.add_argument("--precisions", nargs="+", default=["fp32", "fp16", "bf16"])
    parser.add_argument("--batches", nargs="+", type=int, default=[24, 256])
    parser.add_argument("--out", type=Path, default=RESULTS)
    args = parser.parse_args()
    main()
