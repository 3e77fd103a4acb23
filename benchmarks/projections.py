"""How many random projections a regression needs: accuracy by their number, against the limit of infinitely many.

    python benchmarks/projections.py --data cars/ --backbone deit_tiny_patch16_224.safetensors --per-class 28 --held-out 8

Training images only: of `--per-class` images of each class, `--held-out` are predicted and the others learned, with their mirror
images, all classes at once, on features of the frozen backbone: the class token of the last block, or of half of the blocks. The
limit is computed from its kernel. For each number, the mean over draws of the projections, at the best of a few strengths.
Prints accuracies in percent, which are appended to `--log`.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from _common import ROOT
from _lab import OnDevice, eval_batches, load_images, load_network
from torch import Tensor

from caprompt.data.transforms import EvalTransform
from caprompt.methods.components.readout import compute_kernel
from caprompt.methods.options import USUAL_CROP

NUMBERS = (1_000, 2_000, 5_000, 10_000, 20_000)
STRENGTHS = (0.01, 0.03, 0.1, 0.3)
BATCH = 32


@torch.no_grad()
def extract(dataset: str, backbone: str, per_class: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return features of images by half of the blocks, (n, K D), and of their mirror images, and their classes, (n,)."""
    network, vit = load_network(backbone)
    num_blocks = vit.config.depth // 2
    train, _, images, _ = load_images(dataset)
    seen: dict[str, int] = {}
    chosen = []
    for index in np.random.default_rng(0).permutation(len(train)):
        label = train.labels[index]
        seen[label] = seen.get(label, 0) + 1
        if seen[label] <= per_class:
            chosen.append(int(index))
    own, size = OnDevice(images, train.labels, sorted(chosen)), network.config.image_size
    transform = EvalTransform(size, network.mean, network.std, resize=round(size / USUAL_CROP))
    plain, mirrored, labels = [], [], []
    for batch, classes in eval_batches(own, own.targets(sorted(seen)), transform):
        for part in batch.split(BATCH):
            plain.append(vit(part, num_blocks=num_blocks))
            mirrored.append(vit(part.flip(3), num_blocks=num_blocks))
        labels.append(classes)
    return torch.cat(plain), torch.cat(mirrored), torch.cat(labels)


def choose_held_out(labels: Tensor, count: int) -> Tensor:
    """Return a mask of `count` images of each class."""
    rng, mask = torch.Generator().manual_seed(1), torch.zeros(len(labels), dtype=torch.bool)
    for label in labels.unique():
        positions = (labels == label).nonzero()[:, 0]
        mask[positions[torch.randperm(len(positions), generator=rng)[:count]]] = True
    return mask


def compute_kernels(learned: Tensor, predicted: Tensor, projections: int | None, seed: int) -> tuple[Tensor, Tensor]:
    """Return the kernel of learned rows, (n, n), and of predicted ones with them, (m, n); without `projections`, the limit."""
    if projections is None:
        rows, others = learned.double(), predicted.double()
        squares, other_squares = rows.square().sum(dim=1), others.square().sum(dim=1)
        return compute_kernel(rows @ rows.T, squares, squares), compute_kernel(others @ rows.T, other_squares, squares)
    drawn = torch.randn(learned.shape[1], projections, generator=torch.Generator().manual_seed(seed)).to(learned)
    hidden, other = F.relu(learned @ drawn), F.relu(predicted @ drawn)
    return (hidden @ hidden.T).double(), (other @ hidden.T).double()


def score(kernels: tuple[Tensor, Tensor], targets: Tensor, labels: Tensor) -> Tensor:
    """Return the accuracy at each strength."""
    kernel, other = kernels
    accuracies = []
    for strength in STRENGTHS:
        system = kernel.clone()
        system.diagonal().add_(strength * kernel.diagonal().mean())
        predicted = (other @ torch.linalg.solve(system, targets)).argmax(dim=1)
        accuracies.append(100 * (predicted == labels).double().mean())
    return torch.stack(accuracies)


def main() -> None:
    """Print and append a line for each number of blocks."""
    plain, mirrored, labels = extract(args.data, args.backbone, args.per_class)
    held, depth = choose_held_out(labels, args.held_out), load_network(args.backbone)[1].config.depth
    targets = F.one_hot(labels[~held].repeat(2)).double()
    place = f"{Path(args.data).name}, {Path(args.backbone).stem}, {args.per_class - args.held_out} images of a class"
    for num_blocks in (1, depth // 2):
        width = num_blocks * (plain.shape[1] // (depth // 2))  # the last block's are the last columns
        learned, predicted = torch.cat([plain[~held], mirrored[~held]])[:, -width:], plain[held][:, -width:]
        found = []
        for number in (*NUMBERS, None):
            draws = range(1 if number is None else args.draws)
            scores = [score(compute_kernels(learned, predicted, number, seed), targets, labels[held]) for seed in draws]
            found.append(f"{number or 'limit'}: {float(torch.stack(scores).mean(dim=0).max()):.1f}")
        line = f"{place}, last {num_blocks} blocks, {int(held.sum())} images predicted: {', '.join(found)}"
        print(line, flush=True)
        with args.log.open("a", encoding="utf-8") as file:
            file.write(line + "\n")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", required=True)
    parser.add_argument("--backbone", required=True)
    parser.add_argument("--per-class", type=int, default=28)
    parser.add_argument("--held-out", type=int, default=8)
    parser.add_argument("--draws", type=int, default=3)
    parser.add_argument("--log", type=Path, default=ROOT / "results" / "search" / "projections.txt")
    args = parser.parse_args()
    main()
