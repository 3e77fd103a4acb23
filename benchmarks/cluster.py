"""What Ray costs: a grid on three workers of a Ray cluster against three processes, and bulk prediction against `predict`.

    OMP_NUM_THREADS=1 python benchmarks/cluster.py       # prints both shares, writes results/speed/cluster.json

Both sides of a comparison use the same machine, one thread per worker, and the same images. Starting the cluster, and of `predict`
starting Python and loading the model, are left out; starting the workers is not. With `--rounds` above 1, sides take turns, and the
fastest round of each counts.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import tempfile
import time
from math import floor
from pathlib import Path
from typing import Any

import torch
from _common import SPEED, save
from PIL import Image

from caprompt import ContinualClassifier
from caprompt.classifier.file_prediction import predict_files
from caprompt.data.sources import list_images
from caprompt.distributed.bulk_prediction import ModelSpec, ShardResult, predict_to_file
from caprompt.distributed.ray_grid import RayExecutor
from caprompt.distributed.ray_prediction import RayRunner
from caprompt.experiments.config import RunConfig, resolve_config
from caprompt.experiments.grid import Cell, run_grid

WORKERS = 3
CORES = os.cpu_count() or 1
BACKBONE = "vit_mini_patch8_64.tin200_distilled"  # comes with the package


def make_cells(count: int, epochs: int) -> list[Cell]:
    """Return cells of equal work: CAPrompt on the digits, a seed each."""
    common: dict[str, Any] = {"dataset": "digits", "backbone": BACKBONE, "per_class": 20, "options": {"epochs": epochs}}
    return [Cell(resolve_config(RunConfig(**common, seed=seed))) for seed in range(count)]


def time_grid(cells: list[Cell], folder: Path, executor: RayExecutor | None) -> float:
    """Return the seconds that a grid takes."""
    start = time.perf_counter()
    run_grid(cells, folder, jobs=WORKERS if executor is None else 1, device="cpu", executor=executor)
    return time.perf_counter() - start


def measure_grid(folder: Path) -> dict[str, Any]:
    """Measure cells per minute in processes and on Ray."""
    cells = make_cells(args.cells, args.epochs)
    seconds: dict[str, list[float]] = {"processes": [], "ray": []}
    executor = RayExecutor("local", cpus=floor(1000 * CORES / WORKERS) / 1000)  # rounded up, one worker less would fit
    for number in range(args.rounds):
        seconds["processes"].append(time_grid(cells, folder / f"processes{number}", None))
        seconds["ray"].append(time_grid(cells, folder / f"ray{number}", executor))
    rates = {name: 60 * len(cells) / min(each) for name, each in seconds.items()}
    return {"workers": WORKERS, "cells": len(cells), "cells_per_minute": rates, "share": rates["ray"] / rates["processes"]}


def make_photos(folder: Path, count: int) -> list[Path]:
    """Write JPEG files of the size of small photos."""
    rng = torch.Generator().manual_seed(0)
    folder.mkdir()
    for number in range(count):
        coarse = (torch.rand(12, 16, 3, generator=rng) * 255).byte().numpy()
        Image.fromarray(coarse).resize((640, 480), Image.Resampling.BICUBIC).save(folder / f"{number:05d}.jpg")
    return list_images([folder])


def measure_prediction(folder: Path) -> dict[str, Any]:
    """Measure images per second of `predict` in this process, and of one actor while it predicts."""
    photos = make_photos(folder / "photos", args.images)
    model = ContinualClassifier("ncm", BACKBONE, device="cpu")
    model.learn((photos[:20], ["one", "other"] * 10))
    model.save(folder / "model")
    spec = ModelSpec(folder / "model", device="cpu")
    seconds: dict[str, list[float]] = {"predict": [], "actor": []}
    for number in range(args.rounds):
        start = time.perf_counter()
        predict_files(model, photos, 3, skip_bad=False, options={})
        seconds["predict"].append(time.perf_counter() - start)
        shards: list[ShardResult] = []
        output = folder / f"{number}.jsonl"
        predict_to_file(spec, photos, output, runner=RayRunner("local", limit=1), on_shard=shards.append, shard_images=512)
        seconds["actor"].append(sum(shard.seconds for shard in shards))
    rates = {name: len(photos) / min(each) for name, each in seconds.items()}
    return {"images": len(photos), "images_per_s": rates, "share": rates["actor"] / rates["predict"]}


def main() -> None:
    """Measure, print, write."""
    import ray

    torch.set_num_threads(1)
    folder = Path(tempfile.mkdtemp())
    ray.init("local", num_cpus=CORES, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
    try:
        result = {"ray": ray.__version__, "grid": measure_grid(folder), "prediction": measure_prediction(folder)}
    finally:
        ray.shutdown()
        shutil.rmtree(folder)
    print(json.dumps(result, indent=1))
    save("cluster", result, args.out)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cells", type=int, default=12)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--images", type=int, default=2048)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--out", type=Path, default=SPEED)
    args = parser.parse_args()
    main()
