"""What more views of few images are worth to a regression on frozen features: mirrored, a wider and a narrower crop.

    python benchmarks/views.py --data cars/ cifar100 --backbone vit_mini_patch8_64.tin200_distilled --images 1 2 5

Training images only: of `--per-class` images of each class, some are learned and the others predicted. All classes are learned at
once, by a ridge regression of strength 0.1 with the kernel of infinitely many rectified projections, so that nothing is random but
the draw of images and classes. Rows read the class token of the last block, or of half of the blocks. Columns: one view of each
image as at prediction (the central 0.875 of the short side); with its mirror image; with crops of 1 and 0.7 of the short side and
their mirror images as well; and mirrored, with whole images learned and predicted. Prints accuracies in percent, means over draws,
which are appended to `--log`.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from _common import ROOT
from _lab import OnDevice, eval_batches, load_images, load_network
from torch import Tensor

from caprompt.data.transforms import EvalTransform
from caprompt.methods.components.readout import compute_kernel

USUAL, WHOLE, NARROW = 0.875, 1.0, 0.7
STRENGTH = 0.1
COLUMNS = {  # crops to learn from, with their mirror images or without, and the crop to predict
    "one view": ([USUAL], False, USUAL),
    "mirrored": ([USUAL], True, USUAL),
    "six views": ([USUAL, WHOLE, NARROW], True, USUAL),
    "whole, mirrored": ([WHOLE], True, WHOLE),
}
Views = dict[tuple[float, bool], Tensor]  # features (n, K, D) by crop, and whether mirrored


@torch.no_grad()
def extract(
    dataset: str, backbone_path: str, per_class: int, num_classes: int | None, crops: Sequence[float]
) -> tuple[Views, Tensor]:
    """Return the class tokens of the last half of the blocks for some images of each class, and the classes (n,)."""
    samples, _, cache, _ = load_images(dataset)
    backbone, vit = load_network(backbone_path)
    rng, labels = np.random.default_rng(0), np.array(samples.labels)
    classes = rng.permutation(sorted(set(samples.labels)))[:num_classes].tolist()
    chosen = [int(i) for name in classes for i in rng.permutation(np.flatnonzero(labels == name))[:per_class]]
    images = OnDevice(cache, samples.labels, chosen)
    targets, depth, size = images.targets(classes), backbone.config.depth, backbone.config.image_size
    views: dict[tuple[float, bool], list[Tensor]] = {}
    for crop in crops:
        transform = EvalTransform(size, backbone.mean, backbone.std, resize=round(size / crop))
        for batch, _ in eval_batches(images, targets, transform):
            for mirrored, view in ((False, batch), (True, batch.flip(-1))):
                tokens = torch.cat([vit(part, num_blocks=depth // 2) for part in view.split(64)])
                views.setdefault((crop, mirrored), []).append(tokens.double().cpu().unflatten(1, (depth // 2, -1)))
    return {key: torch.cat(parts) for key, parts in views.items()}, torch.tensor(targets)


def predict(learned: Tensor, labels: Tensor, tested: Tensor, num_classes: int, strength: float = STRENGTH) -> Tensor:
    """Return the classes that a regression on learned features (n, D) predicts for others (m, D)."""
    squares = learned.square().sum(dim=1)
    kernel = compute_kernel(learned @ learned.T, squares, squares)
    kernel.diagonal().add_(strength * kernel.diagonal().mean())
    weights = torch.linalg.solve(kernel, F.one_hot(labels, num_classes).double())
    predicted: Tensor = (compute_kernel(tested @ learned.T, tested.square().sum(dim=1), squares) @ weights).argmax(dim=1)
    return predicted


def rank_images(labels: Tensor, generator: torch.Generator) -> Tensor:
    """Return the rank of each image among those of its class, in a random order: (n,)."""
    order, rank = torch.randperm(len(labels), generator=generator), torch.empty_like(labels)
    for name in labels.unique():
        own = order[labels[order] == name]
        rank[own] = torch.arange(len(own))
    return rank


def measure(views: Views, labels: Tensor, count: int, blocks: int, draws: int) -> list[float]:
    """Return the accuracy of each column in percent, with `count` images of a class learned; a mean over draws."""
    totals = [0.0] * len(COLUMNS)
    for draw in range(draws):
        rank = rank_images(labels, torch.Generator().manual_seed(draw))
        train, test = (rank < count).nonzero()[:, 0], (rank >= count).nonzero()[:, 0]
        for column, (crops, mirror, tested) in enumerate(COLUMNS.values()):
            used = [(crop, mirrored) for crop in crops for mirrored in (False, True)[: 1 + mirror]]
            learned = torch.cat([views[key][train, -blocks:].flatten(1) for key in used])
            features = views[tested, False][test, -blocks:].flatten(1)
            guess = predict(learned, labels[train].repeat(len(used)), features, int(labels.max()) + 1)
            totals[column] += 100 * float((guess == labels[test]).double().mean()) / draws
    return totals


def main() -> None:
    """Measure, print, append to the log."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", nargs="+", default=["cifar100"])
    parser.add_argument("--backbone", default="vit_mini_patch8_64.tin200_distilled")
    parser.add_argument("--images", nargs="+", type=int, default=[1, 2, 5], help="of each class that are learned")
    parser.add_argument("--per-class", type=int, default=25, help="of each class that are learned or predicted")
    parser.add_argument("--classes", type=int)
    parser.add_argument("--draws", type=int, default=3)
    parser.add_argument("--log", type=Path, default=ROOT / "results" / "search" / "views.txt")
    args = parser.parse_args()
    if max(args.images) >= args.per_class:
        parser.error("--images must be below --per-class, so that some images are left to predict")
    lines = [f"| data | backbone | classes | images | blocks | {' | '.join(COLUMNS)} |", f"|{'---|' * (5 + len(COLUMNS))}"]
    for dataset in args.data:
        views, labels = extract(dataset, args.backbone, args.per_class, args.classes, (USUAL, WHOLE, NARROW))
        place = f"{Path(dataset).name} | {Path(args.backbone).stem} | {int(labels.max()) + 1}"
        for count in args.images:
            for blocks in sorted({1, views[USUAL, False].shape[1]}):
                accuracies = measure(views, labels, count, blocks, args.draws)
                lines.append(f"| {place} | {count} | {blocks} | {' | '.join(f'{each:.1f}' for each in accuracies)} |")
                print(lines[-1], flush=True)
    with args.log.open("a", encoding="utf-8") as file:
        file.write("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
