"""Does a prediction depend on the batch? Outputs of the same images alone, in batches and in another order, compared bit by bit.

    python benchmarks/invariance.py MODEL --dataset cifar100       # prints a table, writes results/speed/invariance.json

Rows: for each precision, the labels and the bits of outputs that differ between images that are predicted one at a time and in
batches of 7, 24 and 256, and shuffled in batches of 256; and the labels that differ from those in float32. Everything from the
pixels on is compared: resizing, network and classifier. Without a MODEL, a quick one is trained on the first images of each class.
"""

from __future__ import annotations

import argparse
import random
from pathlib import Path
from typing import Any

from _common import SPEED, print_table, save
from torch import Tensor

from caprompt import ContinualClassifier
from caprompt.backbones.weights import DEFAULT_BACKBONE
from caprompt.data import Dataset, Samples, load_dataset

SHUFFLE_SEED = 0
TASKS = 10


def predict(model: ContinualClassifier, samples: Samples, size: int) -> Tensor:
    """Return outputs (N, C) of images that are predicted `size` at a time."""
    output = model._predict_images(list(samples.images), size, {})
    assert output is not None
    return output.logits.cpu()


def train_quickly(data: Dataset) -> ContinualClassifier:
    """Return a model of all classes, taught in tasks from some images of each."""
    train = data.train.select_per_class(args.per_class)
    model = ContinualClassifier(
        "caprompt", args.backbone or DEFAULT_BACKBONE, projections=args.projections, epochs=1, device=args.device
    )
    for number in range(TASKS):
        model.learn(train.select_classes(train.classes[number::TASKS]), progress=False)
    return model


def main() -> None:
    """Predict with every precision and batch size, print, write."""
    data = load_dataset(args.dataset)
    model = train_quickly(data) if args.model is None else ContinualClassifier.load(args.model, backbone=args.backbone)
    samples = data.test.select_classes(model.classes)
    samples = samples.select(range(min(args.images, len(samples))))
    shuffled = random.Random(SHUFFLE_SEED).sample(range(len(samples)), len(samples))
    orders = [(size, "as they are", list(range(len(samples)))) for size in args.batches] + [(256, "shuffled", shuffled)]
    exact = None
    if "fp32" in args.precisions and len(args.precisions) > 1:
        with model.override_options({"precision": "fp32"}):
            exact = predict(model, samples, 256).argmax(dim=1)
    rows: list[dict[str, Any]] = []
    for precision in args.precisions:
        with model.override_options({"precision": precision}):
            alone = predict(model, samples, 1)
            for size, name, positions in orders:
                together, expected = predict(model, samples.select(positions), size), alone[positions]
                labels = together.argmax(dim=1)
                differences = {
                    "labels": int((labels != expected.argmax(dim=1)).sum()),
                    "outputs": int((together != expected).sum()),
                    "labels_fp32": None if exact is None else int((labels != exact[positions]).sum()),
                }
                rows.append({"precision": precision, "batch": size, "order": name, **differences})
                print(rows[-1], flush=True)
    backbone = model.backbone.name
    result = {"images": len(samples), "classes": len(model.classes), "backbone": backbone, "rows": rows}
    print_table("invariance", result)
    save(args.name, result, args.out, data)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path, nargs="?")
    parser.add_argument("--backbone", help="name or weights file (default: the model's, or the embedded one)")
    parser.add_argument("--dataset", default="cifar100")
    parser.add_argument("--images", type=int, default=10_000)
    parser.add_argument("--per-class", type=int, default=10, help="images that a quick model is trained on")
    parser.add_argument("--projections", type=int, default=5_000)
    parser.add_argument("--precisions", nargs="+", default=["bf16", "fp32"])
    parser.add_argument("--batches", nargs="+", type=int, default=[7, 24, 256])
    parser.add_argument("--device", default="auto")
    parser.add_argument("--name", default="invariance", help="of the file in results/speed")
    parser.add_argument("--out", type=Path, default=SPEED)
    args = parser.parse_args()
    main()
