"""What frozen features alone are worth on CIFAR-100: nearest class mean, and ridge regression on a random projection.

    python benchmarks/frozen.py --backbone deit_tiny_patch16_224.safetensors

Nothing is trained, all 100 classes are learned at once. The pictures of 32 pixels are resized to 256 and cut to 224 in two ways: as
everywhere here, by Pillow's bicubic rule and rounded to bytes; and by `torch.nn.functional.interpolate`, whose bicubic rule has
another constant (-0.75, Pillow -0.5) and does not round. Prints a table, writes benchmarks/results/frozen.json.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator

import numpy as np
import torch
import torch.nn.functional as F
from measuring import save
from torch import Tensor

from caprompt import ContinualClassifier
from caprompt.data import Samples, load_dataset
from caprompt.engine.inputs import InputPipeline
from caprompt.methods.base import Batches
from caprompt.methods.components.heads import Head, PrototypeHead
from caprompt.methods.components.ridge import RandomRidge

PROJECTIONS = 8000


def by_pillow(model: ContinualClassifier, samples: Samples, targets: list[int]) -> Batches:
    """As every method here sees pictures."""
    yield from InputPipeline(model.backbone, model.device).plain(samples, targets, model.method.options, 500)


def by_interpolate(model: ContinualClassifier, samples: Samples, targets: list[int]) -> Batches:
    """As a program does that keeps all pictures as one tensor."""
    mean, std = (torch.tensor(each, device=model.device).view(3, 1, 1) for each in (model.backbone.mean, model.backbone.std))
    size, resized = model.vit.config.image_size, round(model.vit.config.image_size * 256 / 224)
    edge = (resized - size) // 2
    for start in range(0, len(samples), 500):
        chosen = range(start, min(start + 500, len(samples)))
        pixels = torch.from_numpy(np.stack([np.asarray(samples.pictures[number]) for number in chosen]))
        pictures = pixels.to(model.device).permute(0, 3, 1, 2).float() / 255
        large = F.interpolate(pictures, (resized, resized), mode="bicubic", align_corners=False)
        yield (large[..., edge : edge + size, edge : edge + size] - mean) / std, torch.tensor(targets[start : chosen.stop])


def features(model: ContinualClassifier, batches: Batches) -> Iterator[tuple[Tensor, Tensor]]:
    """Of all pictures, batch by batch."""
    for pictures, labels in batches:
        yield model.vit(pictures), labels.to(model.device)


def accuracy(head: Head, tests: list[tuple[Tensor, Tensor]]) -> float:
    """In percent."""
    right = sum(int((head(rows).argmax(dim=1) == labels).sum()) for rows, labels in tests)
    return 100 * right / sum(len(labels) for _, labels in tests)


@torch.no_grad()
def main() -> None:
    """Measure, print, write."""
    model, data = ContinualClassifier("ncm", args.backbone), load_dataset("cifar100")
    number = {name: index for index, name in enumerate(data.train.classes)}
    found = {}
    for way, shown in (("pillow", by_pillow), ("interpolate", by_interpolate)):
        train, test = (
            list(features(model, shown(model, part, [number[label] for label in part.labels]))) for part in (data.train, data.test)
        )
        means, ridge = PrototypeHead(model.vit.config.width), RandomRidge(model.vit.config.width, PROJECTIONS)
        for head in (means, ridge):
            head.to(model.device).grow(len(number), torch.Generator().manual_seed(args.seed))
        means.statistics.observe_all(train)
        ridge.learn(train, torch.Generator().manual_seed(args.seed))
        found[way] = {"nearest class mean": accuracy(means, test), f"ridge on {PROJECTIONS} projections": accuracy(ridge, test)}
        print(way, {name: round(figure, 2) for name, figure in found[way].items()}, flush=True)
    save("frozen", {"data": "CIFAR-100, all classes at once", "backbone": model.backbone.name, "seed": args.seed, "percent": found})


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--backbone", default="deit_tiny_patch16_224.fb_in1k")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    main()
