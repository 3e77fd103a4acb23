"""One epoch of CIFAR-100's sixth task from files on disk, end to end, against the bare step on images that are already there.

    python benchmarks/epoch.py                       # prints a table, writes benchmarks/results/epoch.json

ViT-B/16 with random weights, on a GPU. End to end is the package's own `learn`: reading, cropping, colouring, stepping, its second
epoch (the first one includes recording the step). The bare step is the same method's, replayed on one resident batch.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from typing import Any

import torch
from measuring import BASE, RESULTS, batch, caprompt, median_seconds, save
from page import epoch
from safetensors.torch import save_file

from caprompt import ContinualClassifier
from caprompt.data import load_dataset
from caprompt.engine.trainer import TrainingStep, build_optimizer
from caprompt.methods.caprompt import CAPrompt
from caprompt.utils.cuda_graphs import capture


def measure(size: int, folder: Path) -> dict[str, Any]:
    """Images per second of an epoch and of the bare step."""
    train = load_dataset("cifar100").train
    tasks = [train.classes[start : start + 10] for start in range(0, 60, 10)]
    model = ContinualClassifier(
        "caprompt", folder / "random.safetensors", batch_size=size, epochs=2, classifier="aligned", align_epochs=1
    )
    for names in tasks[:5]:
        model.learn(train.of_classes(names).first_of_each(2 * size // 10 + 1))
    model.learn(train.of_classes(tasks[5]))
    ended = model.history[-1]
    assert isinstance(model.method, CAPrompt)
    images, labels = batch(model.method, size)
    step = capture(TrainingStep(model.method, build_optimizer(model.method)), model.device)
    bare = size / median_seconds(lambda: step(images, labels))
    whole = ended["images"] / ended["seconds"]
    return {"batch": size, "epoch_images_per_s": whole, "step_images_per_s": bare, "share": whole / bare}


def main() -> None:
    """Measure, print, write."""
    with tempfile.TemporaryDirectory() as folder:
        vit = caprompt(torch.device("cpu"), torch.float32, tasks=1).vit
        save_file(vit.state_dict(), Path(folder) / "random.safetensors")
        rows = [measure(size, Path(folder)) for size in args.batches]
    figures = {"patches": BASE.grid**2, "rows": rows}
    print(epoch(figures))
    save("epoch", figures, args.out)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batches", nargs="+", type=int, default=[24, 128])
    parser.add_argument("--out", type=Path, default=RESULTS)
    args = parser.parse_args()
    main()
