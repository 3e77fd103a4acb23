"""Training steps and predictions on a CPU by the number of threads with images of their own, alone and beside busy processes.

    python benchmarks/cpu_threads.py                 # prints a table, writes results/speed/cpu_threads.json

`W x T`: W workers have a part of each batch, and each lets PyTorch divide its operations among T threads; with one worker, all
operations are divided. All cores are used, or with T = 1 only W of them. The default's own step, embedded backbone; the
settings in turn, means of some steps each. At prediction W threads have one image each, which no others divide: that backbone, and
one of DeiT-Ti's size with random weights.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # as the command line sets it, before PyTorch is imported

import torch
from _common import SPEED, print_table, save
from busy_machine import keep_busy

from caprompt.backbones.vit import ViT, ViTConfig
from caprompt.backbones.weights import DEFAULT_BACKBONE, load_backbone
from caprompt.engine.separate_images import predict_separately
from caprompt.engine.trainer import build_optimizer
from caprompt.engine.training_step import TrainingStep, make_step
from caprompt.methods import build_method
from caprompt.methods.base import Method
from caprompt.utils.threads import use_threads

BATCHES = (4, 16, 32, 64)  # those that the default chooses from, and a last batch of an epoch
CLASSES = 3
PREDICTED = 32  # images
DEIT_TINY = ViTConfig(image_size=224, patch_size=16, width=192, depth=12, heads=3, mlp_width=768)


def build(vit: ViT) -> Method:
    """Return the default in its first task."""
    method = build_method("caprompt", vit, {})
    method.begin_task(CLASSES, torch.Generator().manual_seed(0))
    return method


def list_settings(cores: int, size: int) -> list[tuple[int, int]]:
    """Return the numbers of workers, and of the threads of each, to compare on so many cores for batches of a size."""
    all_cores = [(workers, cores // workers) for workers in (1, 2, 4, 8) if cores % workers == 0]
    fewer = [(workers, 1) for workers in (1, 2, 3, 4, 6) if workers < cores]
    return [(workers, threads_each) for workers, threads_each in (*all_cores, *fewer) if workers <= size]


def time_steps(method: Method, size: int, workers: int, threads_each: int) -> float:
    """Return the mean seconds of a step on so many images by so many workers; with one, the batch is not divided."""
    generator = torch.Generator().manual_seed(0)
    images, labels = torch.randn(size, 3, 64, 64, generator=generator), torch.arange(size) % CLASSES
    step: Callable[[torch.Tensor, torch.Tensor], Any] = (TrainingStep if workers == 1 else make_step)(
        method, build_optimizer(method)
    )
    with use_threads(workers * threads_each), mock.patch("caprompt.utils.threads.MAX_WORKERS", max(2, workers)):
        step(images, labels)
        step(images, labels)
        start = time.perf_counter()
        for _ in range(args.steps):
            step(images, labels)
        return (time.perf_counter() - start) / int(args.steps)


def time_predictions(method: Method, workers: int) -> float:
    """Return the seconds of a prediction by so many workers, the least of two means."""
    size = method.vit.config.image_size
    images = torch.randn(PREDICTED, 3, size, size, generator=torch.Generator().manual_seed(0))
    seconds = []
    with mock.patch("caprompt.engine.separate_images.count_predicting_threads", return_value=workers):
        for _ in range(2):
            start = time.perf_counter()
            predict_separately(method, images, None)
            seconds.append((time.perf_counter() - start) / PREDICTED)
    return min(seconds)


def main() -> None:
    """Measure every setting, print, write."""
    cores = torch.get_num_threads()
    methods = {"embedded": build(load_backbone(DEFAULT_BACKBONE).build()), "DeiT-Ti's size": build(ViT(DEIT_TINY))}
    rows, predictions = [], []
    for processes in (0, args.processes):
        with keep_busy(processes):
            for size in BATCHES:
                seconds = {f"{w} x {t}": time_steps(methods["embedded"], size, w, t) for w, t in list_settings(cores, size)}
                rows.append({"processes": processes, "batch": size, "seconds": seconds})
                print(rows[-1], flush=True)
    for processes in (0, args.processes):
        with keep_busy(processes):
            for name, method in methods.items():
                seconds = {str(workers): time_predictions(method, workers) for workers in range(1, cores + 1)}
                predictions.append({"processes": processes, "backbone": name, "seconds": seconds})
                print(predictions[-1], flush=True)
    result = {"threads": cores, "steps": args.steps, "rows": rows, "predictions": predictions}
    print_table("cpu_threads", result)
    save(args.name, result, args.out, device="cpu")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--processes", type=int, default=10, help="that never rest, beside which all is measured again")
    parser.add_argument("--out", type=Path, default=SPEED)
    parser.add_argument("--name", default="cpu_threads", help="of the file with the result")
    args = parser.parse_args()
    main()
