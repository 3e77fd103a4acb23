"""CAPrompt's training step on a CPU with the embedded backbone, against the plain step of four separate float32 passes.

    python benchmarks/cpu_step.py                    # prints a table, writes results/speed/cpu_step.json

Both are measured in turn within the same run, so that other load slows both alike; the ratio is of their medians.
Shares are of a large float32 matmul measured in the same run; a step is about six forward passes.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from _common import (
    SPEED,
    build_caprompt,
    compute_plain_losses,
    count_forward_gflop,
    make_batch,
    measure_ceilings,
    print_table,
    save,
)

from caprompt.backbones.weights import DEFAULT_BACKBONE, load_backbone
from caprompt.engine.trainer import build_optimizer
from caprompt.engine.training_step import TrainingStep, make_step
from caprompt.methods.caprompt import CAPrompt

TASKS = 3
CONFIG = load_backbone(DEFAULT_BACKBONE).config


def build(dtype: torch.dtype) -> CAPrompt:
    """Build CAPrompt in its third task."""
    return build_caprompt(torch.device("cpu"), dtype, TASKS, classes=2, config=CONFIG)


def build_plain_step(method: CAPrompt) -> Callable[[], Any]:
    """Build the step of the baseline."""
    optimizer = build_optimizer(method)
    images, labels = make_batch(method, args.batch)

    def step() -> None:
        optimizer.zero_grad()
        torch.stack(list(compute_plain_losses(method, images, labels).values())).sum().backward()
        torch.nn.utils.clip_grad_norm_([method.prompt, *method.head.parameters()], 1.0)
        optimizer.step()

    return step


def build_package_step(method: CAPrompt, *, divided: bool = True) -> Callable[[], Any]:
    """Build the step of the package, by threads that divide the batch or, as elsewhere, that divide every operation."""
    step = (make_step if divided else TrainingStep)(method, build_optimizer(method))
    images, labels = make_batch(method, args.batch)
    return lambda: step(images, labels)


def main() -> None:
    """Measure in turn, print, write."""
    torch.set_num_threads(args.threads)
    ceiling = measure_ceilings(torch.device("cpu"))
    steps = {
        "plain fp32, four passes": build_plain_step(build(torch.float32)),
        "package, fp32": build_package_step(build(torch.float32)),
        "package, fp32, batch not divided": build_package_step(build(torch.float32), divided=False),
        "package, bf16": build_package_step(build(torch.bfloat16)),
    }
    if args.compiled:
        method = build(torch.float32)
        method.vit.set_compiled(True)
        steps["package, fp32, compiled"] = build_package_step(method)
    seconds: dict[str, list[float]] = {name: [] for name in steps}
    for turn in range(args.turns + 2):
        for name, step in steps.items():
            began = time.perf_counter()
            step()
            if turn >= 2:
                seconds[name].append(time.perf_counter() - began)
    medians = {name: statistics.median(times) for name, times in seconds.items()}
    shares = {
        name: 6e-3 * count_forward_gflop(CONFIG) * args.batch / each / ceiling["matrix_tflops"] for name, each in medians.items()
    }
    result = {"batch": args.batch, "threads": args.threads, "ceilings": ceiling, "seconds": medians, "shares": shares}
    print_table("cpu_step", result)
    save("cpu_step", result, args.out)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch", type=int, default=24)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--turns", type=int, default=15)
    parser.add_argument("--compiled", action="store_true", help="also torch.compile, which needs a C++ compiler")
    parser.add_argument("--out", type=Path, default=SPEED)
    args = parser.parse_args()
    main()
