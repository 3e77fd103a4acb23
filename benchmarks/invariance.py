"""Does company change an answer in half precision? Labels and probabilities of the same images, alone and in batches.

    python benchmarks/invariance.py MODEL --dataset cifar100       # prints a table, writes benchmarks/results/invariance.json

Rows: each precision and batch size against float32 in large batches, and against the same precision alone. `again` are the close
decisions that in half precision are made again in float32: those whose two best logits differ by less than `bound`, which the model
finds out on its first images (`answering.py`). `rounding` is how far a batch moves a logit from where it is alone, at most; `labels
at first` are those that differ before anything is asked again.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import torch
from measuring import RESULTS, save
from page import invariance
from torch import Tensor

from caprompt import ContinualClassifier
from caprompt.data import Samples, load_dataset
from caprompt.engine.inference import Predictor, is_close
from caprompt.engine.inputs import InputPipeline


def asked(model: ContinualClassifier, samples: Samples, size: int, precision: str) -> tuple[Tensor, Tensor, float]:
    """Probabilities, and logits before any decision is made again: (N, C) each, with batches of this size; what was close."""
    feeder = InputPipeline(model.backbone, model.device)
    found, first = [], []
    with model.with_options({"precision": precision}):
        ask = Predictor(model.method, size)
        for images, _ in feeder.plain(samples, [0] * len(samples), model.method.options, size):
            answer = ask.together(images)
            first.append(answer.logits.clone())
            ask.settle(images, answer)
            found.append(answer.logits.softmax(dim=1))
    return torch.cat(found), torch.cat(first), ask.bound


def main() -> None:
    """Measure, print, write."""
    model = ContinualClassifier.load(args.model, backbone=args.backbone)
    samples = load_dataset(args.dataset).test.of_classes(model.classes)
    samples = samples.select(range(min(args.images, len(samples))))
    exact, _, _ = asked(model, samples, args.batches[-1], "fp32")
    rows: list[dict[str, Any]] = []
    for precision in args.precisions:
        alone, alone_first, _ = asked(model, samples, 1, precision)
        for size in args.batches:
            found, first, bound = asked(model, samples, size, precision)
            rows.append(
                {
                    "precision": precision,
                    "batch": size,
                    "again_percent": 100 * float(is_close(first, bound).float().mean()),
                    "bound": bound,
                    "rounding": float((first - alone_first).abs().max()),
                    "labels_first": int((first.argmax(dim=1) != alone_first.argmax(dim=1)).sum()),
                    **differences(found, alone, "alone"),
                    **differences(found, exact, "fp32"),
                }
            )
    figures = {"images": len(samples), "rows": rows}
    print(invariance(figures))
    save("invariance", figures, args.out)


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
