"""Accuracy of frozen features on CIFAR-100: nearest class mean, and ridge regression on a random projection.

    python benchmarks/frozen.py --backbone deit_tiny_patch16_224.safetensors

Nothing is trained, all 100 classes are learned at once. Images of 32 pixels are resized to 256 and cropped to 224 in two ways: by
Pillow's bicubic interpolation with rounding to bytes, as everywhere here; and by `torch.nn.functional.interpolate`, whose bicubic
kernel has another constant (-0.75, Pillow -0.5) and does not round. Prints accuracies, writes results/accuracy/frozen.json.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator

import numpy as np
import torch
import torch.nn.functional as F
from _common import ACCURACY, save
from torch import Tensor

from caprompt import ContinualClassifier
from caprompt.data import Samples, load_dataset
from caprompt.engine.inputs import InputPipeline
from caprompt.methods.base import Batches
from caprompt.methods.components.heads import Head, PrototypeHead
from caprompt.methods.components.ridge import RandomRidge

PROJECTIONS = 8000


def resize_pillow(model: ContinualClassifier, samples: Samples, targets: list[int]) -> Batches:
    """Yield batches as for every method here."""
    yield from InputPipeline(model.backbone, model.device).eval_batches(samples, targets, model.method.input_options, 500)


def resize_interpolate(model: ContinualClassifier, samples: Samples, targets: list[int]) -> Batches:
    """Yield batches as in code that stores all images as one tensor."""
    mean, std = (torch.tensor(each, device=model.device).view(3, 1, 1) for each in (model.backbone.mean, model.backbone.std))
    size, resized = model.method.vit.config.image_size, round(model.method.vit.config.image_size * 256 / 224)
    edge = (resized - size) // 2
    for start in range(0, len(samples), 500):
        indices = range(start, min(start + 500, len(samples)))
        pixels = torch.from_numpy(np.stack([np.asarray(samples.images[number]) for number in indices]))
        images = pixels.to(model.device).permute(0, 3, 1, 2).float() / 255
        large = F.interpolate(images, (resized, resized), mode="bicubic", align_corners=False)
        yield (large[..., edge : edge + size, edge : edge + size] - mean) / std, torch.tensor(targets[start : indices.stop])


def extract_features(model: ContinualClassifier, batches: Batches) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield features and labels, batch by batch."""
    for images, labels in batches:
        yield model.method.vit(images), labels.to(model.device)


def compute_accuracy(head: Head, tests: list[tuple[Tensor, Tensor]]) -> float:
    """Return the accuracy in percent."""
    correct = sum(int((head(rows).argmax(dim=1) == labels).sum()) for rows, labels in tests)
    return 100 * correct / sum(len(labels) for _, labels in tests)


@torch.no_grad()
def main() -> None:
    """Measure, print, write."""
    model, data = ContinualClassifier("ncm", args.backbone), load_dataset("cifar100")
    number = {name: index for index, name in enumerate(data.train.classes)}
    percent = {}
    for name, resize in (("pillow", resize_pillow), ("interpolate", resize_interpolate)):
        train, test = (
            list(extract_features(model, resize(model, part, [number[label] for label in part.labels])))
            for part in (data.train, data.test)
        )
        means, ridge = PrototypeHead(model.method.vit.config.width), RandomRidge(model.method.vit.config.width, PROJECTIONS)
        for head in (means, ridge):
            head.to(model.device).grow(len(number), torch.Generator().manual_seed(args.seed))
        means.statistics.observe_batches(train)
        ridge.partial_fit(train, torch.Generator().manual_seed(args.seed))
        percent[name] = {
            "nearest class mean": compute_accuracy(means, test),
            f"ridge on {PROJECTIONS} projections": compute_accuracy(ridge, test),
        }
        print(name, {head: round(value, 2) for head, value in percent[name].items()}, flush=True)
    conditions = {"data": "CIFAR-100, all classes at once", "backbone": model.backbone.name, "seed": args.seed}
    save("frozen", {**conditions, "percent": percent}, ACCURACY, data)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--backbone", default="deit_tiny_patch16_224.fb_in1k")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    main()
