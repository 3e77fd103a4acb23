"""One epoch of CIFAR-100's sixth task from files on disk, end to end, against the bare step on images that are already there.

    python benchmarks/epoch.py                       # prints a table, writes results/speed/epoch.json

ViT-B/16 with random weights, on a GPU. End to end is `learn`: reading, cropping, color jitter, training steps; its second epoch
(the first one includes capturing the step). The bare step is that of the same method, replayed on one resident batch.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from typing import Any

import torch
from _common import BASE, SPEED, build_caprompt, make_batch, median_seconds, print_table, save
from safetensors.torch import save_file

from caprompt import ContinualClassifier
from caprompt.data import Dataset, load_dataset
from caprompt.engine.trainer import build_optimizer
from caprompt.engine.training_step import TrainingStep
from caprompt.methods.caprompt import CAPrompt
from caprompt.utils.cuda_graphs import capture


def measure(size: int, data: Dataset, folder: Path) -> dict[str, Any]:
    """Return images per second of an epoch and of the bare step."""
    train = data.train
    tasks = [train.classes[start : start + 10] for start in range(0, 60, 10)]
    model = ContinualClassifier(
        "caprompt", folder / "random.safetensors", batch_size=size, epochs=2, classifier="aligned", align_epochs=1
    )
    for names in tasks[:5]:
        model.learn(train.select_classes(names).select_per_class(2 * size // 10 + 1))
    model.learn(train.select_classes(tasks[5]))
    epoch = model.history[-1]
    assert isinstance(model.method, CAPrompt)
    images, labels = make_batch(model.method, size)
    step = capture(TrainingStep(model.method, build_optimizer(model.method)), model.device)
    bare = size / median_seconds(lambda: step(images, labels))
    whole = epoch["images"] / epoch["seconds"]
    return {"batch": size, "epoch_images_per_s": whole, "step_images_per_s": bare, "share": whole / bare}


def main() -> None:
    """Measure, print, write."""
    data = load_dataset("cifar100")
    with tempfile.TemporaryDirectory() as folder:
        vit = build_caprompt(torch.device("cpu"), torch.float32, tasks=1).vit
        save_file(vit.state_dict(), Path(folder) / "random.safetensors")
        rows = [measure(size, data, Path(folder)) for size in args.batches]
    result = {"patches": BASE.grid**2, "rows": rows}
    print_table("epoch", result)
    save("epoch", result, args.out, data)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batches", nargs="+", type=int, default=[24, 128])
    parser.add_argument("--out", type=Path, default=SPEED)
    args = parser.parse_args()
    main()
