"""Batch invariance in half precision: labels and probabilities of the same images, alone and in batches.

    python benchmarks/invariance.py MODEL --dataset cifar100       # prints a table, writes results/speed/invariance.json

Rows: each precision and batch size against float32 in large batches, and against the same precision alone. `again` are the close
decisions that half precision repeats in float32: those whose two largest logits differ by less than `bound`, which the model
estimates on its first images (`engine/inference.py`). `rounding` is the largest change of a logit between a batch and the image
alone; `labels_first` counts labels that differ before anything is repeated.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import torch
from _common import SPEED, print_table, save
from torch import Tensor

from caprompt import ContinualClassifier
from caprompt.data import Samples, load_dataset
from caprompt.engine.inference import Predictor, is_close
from caprompt.engine.inputs import InputPipeline


def predict(model: ContinualClassifier, samples: Samples, size: int, precision: str) -> tuple[Tensor, Tensor, float]:
    """Return probabilities, and logits before close decisions are repeated, (N, C) each, with this batch size; and the bound."""
    feeder = InputPipeline(model.backbone, model.device)
    probabilities, first = [], []
    with model.override_options({"precision": precision}):
        predictor = Predictor(model.method, size)
        for images, _ in feeder.eval_batches(samples, [0] * len(samples), model.method.options, size):
            output = predictor.predict_batch(images)
            first.append(output.logits.clone())
            predictor.recheck_close(images, output)
            probabilities.append(output.logits.softmax(dim=1))
    return torch.cat(probabilities), torch.cat(first), predictor.bound


def main() -> None:
    """Measure, print, write."""
    model = ContinualClassifier.load(args.model, backbone=args.backbone)
    data = load_dataset(args.dataset)
    samples = data.test.select_classes(model.classes)
    samples = samples.select(range(min(args.images, len(samples))))
    exact, _, _ = predict(model, samples, args.batches[-1], "fp32")
    rows: list[dict[str, Any]] = []
    for precision in args.precisions:
        alone, alone_first, _ = predict(model, samples, 1, precision)
        for size in args.batches:
            batched, first, bound = predict(model, samples, size, precision)
            rows.append(
                {
                    "precision": precision,
                    "batch": size,
                    "again_percent": 100 * float(is_close(first, bound).float().mean()),
                    "bound": bound,
                    "rounding": float((first - alone_first).abs().max()),
                    "labels_first": int((first.argmax(dim=1) != alone_first.argmax(dim=1)).sum()),
                    **count_differences(batched, alone, "alone"),
                    **count_differences(batched, exact, "fp32"),
                }
            )
    result = {"images": len(samples), "rows": rows}
    print_table("invariance", result)
    save("invariance", result, args.out, data)


def count_differences(one: Tensor, other: Tensor, name: str) -> dict[str, float]:
    """Return the number of labels that differ, and the largest difference of a probability."""
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
    parser.add_argument("--out", type=Path, default=SPEED)
    args = parser.parse_args()
    main()
