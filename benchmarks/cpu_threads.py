"""The training step on a CPU by the number of threads with images of their own, alone and beside ten processes that never rest.

    python benchmarks/cpu_threads.py                 # prints a table, writes results/speed/cpu_threads.json

Of N cores, W workers have a part of each batch, and each lets PyTorch divide its operations among N / W threads; with one worker,
every operation is divided among all. The default's own step, embedded backbone; W = 1, 2, 4, ... in turn, means of some steps each.
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

from caprompt.backbones.weights import DEFAULT_BACKBONE, load_backbone
from caprompt.engine.trainer import build_optimizer
from caprompt.engine.training_step import make_step
from caprompt.methods import build_method
from caprompt.methods.base import Method

BATCHES = (16, 32, 64)  # those that the default chooses from
CLASSES = 3
NUM_BUSY = 10


def build() -> Method:
    """Return the default in its first task."""
    method = build_method("caprompt", load_backbone(DEFAULT_BACKBONE).build(), {})
    method.begin_task(CLASSES, torch.Generator().manual_seed(0))
    return method


def time_steps(step: Callable[[torch.Tensor, torch.Tensor], Any], size: int, workers: int) -> float:
    """Return the mean seconds of a step on so many images by so many workers."""
    generator = torch.Generator().manual_seed(0)
    images, labels = torch.randn(size, 3, 64, 64, generator=generator), torch.arange(size) % CLASSES
    minimum = size if workers == 1 else 1  # of images of a worker: with all of them, the batch is not divided
    most = mock.patch("caprompt.utils.threads.MAX_WORKERS", max(2, workers))
    with most, mock.patch("caprompt.engine.training_step.MIN_IMAGES_OF_THREAD", minimum):
        step(images, labels)
        step(images, labels)
        start = time.perf_counter()
        for _ in range(args.steps):
            step(images, labels)
        return (time.perf_counter() - start) / int(args.steps)


def main() -> None:
    """Measure every number of workers, print, write."""
    threads = torch.get_num_threads()
    numbers = [number for number in (1, 2, 4, 8) if number <= threads and threads % number == 0]
    method = build()
    step = make_step(method, build_optimizer(method))
    rows = []
    for processes in (0, NUM_BUSY):
        with keep_busy(processes):
            for size in BATCHES:
                seconds = {str(workers): time_steps(step, size, workers) for workers in numbers}
                rows.append({"processes": processes, "batch": size, "seconds": seconds})
                print(rows[-1], flush=True)
    result = {"threads": threads, "steps": args.steps, "rows": rows}
    print_table("cpu_threads", result)
    save(args.name, result, args.out)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--out", type=Path, default=SPEED)
    parser.add_argument("--name", default="cpu_threads", help="of the file with the result")
    args = parser.parse_args()
    main()
