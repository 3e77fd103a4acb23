"""Speed and memory of CAPrompt's training step on a GPU: ViT-B/16, 224 px, 12 prompted layers, 5 + 5 rows, sixth of 10-class tasks.

    python benchmarks/train_step.py                  # prints a table, writes results/speed/train_step.json

Rows: the plain baseline (four separate passes) in float32, TF32 and bfloat16, the package's step in float32, bfloat16 and float8,
captured as a CUDA graph, compiled; compiled also without uint8 derivatives, and with either attention kernel instead of torch's
choice; and the step of the default recipe, which trains a task's own prompt alone. Rows in float32 are of the smallest batch.
Shares are of the peak matmul rate measured in the same run; a step after the first task is about six forward passes of
35 GFLOP an image, that of the default two. The first step includes compilation, which torch caches on disk.
Losses and gradients are compared with the same step in float64 on the same weights and images.
"""

from __future__ import annotations

import argparse
import gc
import time
from pathlib import Path
from typing import Any

import torch
from _common import (
    BASE,
    SPEED,
    Variant,
    build_caprompt,
    compute_plain_losses,
    count_forward_gflop,
    make_batch,
    measure_ceilings,
    median_seconds,
    print_table,
    profile_kernels,
    save,
)
from torch import Tensor

from caprompt.engine.trainer import build_optimizer
from caprompt.engine.training_step import TrainingStep
from caprompt.methods.caprompt import CAPrompt
from caprompt.utils.cuda_graphs import CapturedFunction

#: By recipe: a step of a task after the first, per image. A pass with gradients is two, as no weight of the network has any.
GFLOP = {"aligned": 6 * count_forward_gflop(BASE), "ridge": 2 * count_forward_gflop(BASE)}
TASKS = 6
VARIANTS = {
    "plain fp32": Variant(torch.float32, captured=False, plain=True),
    "plain TF32": Variant(torch.float32, captured=False, plain=True, tf32=True),
    "plain bf16": Variant(torch.bfloat16, captured=False, plain=True),
    "package, fp32": Variant(torch.float32),
    "package, bf16, not captured": Variant(torch.bfloat16, captured=False),
    "package, bf16": Variant(torch.bfloat16),
    "package, bf16, compiled": Variant(torch.bfloat16, compiled=True),
    "package, bf16, compiled, no uint8": Variant(torch.bfloat16, compiled=True, compact=False),
    "package, bf16, compiled, flash": Variant(torch.bfloat16, compiled=True, attention="flash"),
    "package, bf16, compiled, cudnn": Variant(torch.bfloat16, compiled=True, attention="cudnn"),
    "package, fp8, compiled": Variant(torch.bfloat16, compiled=True, in_fp8=True),
    "default recipe, bf16": Variant(torch.bfloat16, recipe="ridge"),
    "default recipe, bf16, compiled": Variant(torch.bfloat16, compiled=True, recipe="ridge"),
}


class PlainStep(TrainingStep):
    """The training step of the baseline."""

    def __call__(self, images: Tensor, labels: Tensor) -> dict[str, Tensor]:
        self.optimizer.zero_grad()
        losses = compute_plain_losses(self.method, images, labels)  # type: ignore[arg-type]
        torch.stack(list(losses.values())).sum().backward()
        torch.nn.utils.clip_grad_norm_(self.parameters, 1.0)
        self.optimizer.step()
        return losses


def compute_gradients(method: CAPrompt, images: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Compute the summed loss, and its gradient as one vector."""
    method.zero_grad()
    total = torch.stack(list(method.loss(images, labels).values())).sum()
    total.backward()
    return total.detach(), torch.cat([p.grad.flatten() for p in method.parameters() if p.grad is not None])


def compute_errors(method: CAPrompt, size: int) -> dict[str, float]:
    """Compute the relative error of loss and gradient against float64."""
    exact = build_caprompt(method.device, torch.float64, TASKS, classifier=method.options.classifier).double()
    images, labels = make_batch(method, size)
    loss, gradient = compute_gradients(method, images, labels)
    loss64, gradient64 = compute_gradients(exact, images.double(), labels)
    return {
        "loss_error": float((loss - loss64).abs() / loss64.abs()),
        "gradient_error": float((gradient - gradient64).norm() / gradient64.norm()),
    }


def measure(name: str, size: int, ceiling: float) -> dict[str, Any]:
    """Measure one row: speed, memory, share of the peak rate, error, time by kind of kernel."""
    variant = VARIANTS[name]
    method = variant.build(TASKS)
    errors = compute_errors(method, size) if not variant.plain and size == min(args.batches) else {}
    kind = PlainStep if variant.plain else TrainingStep
    step = kind(method, build_optimizer(method))
    call = CapturedFunction(step) if variant.captured else step
    images, labels = make_batch(method, size)
    gc.collect()  # frees the float64 network of compute_errors
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated() / 1e9  # network, prompts, images
    began = time.perf_counter()
    call(images, labels)
    torch.cuda.synchronize()
    first_seconds = time.perf_counter() - began
    seconds = median_seconds(lambda: call(images, labels))
    memory = {"gb": torch.cuda.max_memory_allocated() / 1e9, "gb_before": before}
    row = {"variant": name, "batch": size, "images_per_s": size / seconds, "ms": seconds * 1e3, "first_s": first_seconds, **memory}
    share = GFLOP[variant.recipe] * 1e9 * size / seconds / (ceiling * 1e12)
    return {**row, "share_of_ceiling": share, **errors, "where": profile_kernels(lambda: call(images, labels))}


def main() -> None:
    """Measure, print, write."""
    device = torch.device("cuda")
    ceiling = measure_ceilings(device)
    print(f"peak rates: {ceiling['matrix_tflops']:.0f} TFLOP/s bf16, {ceiling['copy_tb_per_s']:.2f} TB/s")
    result: dict[str, Any] = {"ceilings": ceiling, "tasks": TASKS, "rows": []}
    for name in args.variants:
        is_slow = VARIANTS[name].dtype == torch.float32 and not VARIANTS[name].tf32
        sizes = [min(args.batches)] if is_slow else args.batches
        for size in sizes:
            result["rows"].append(measure(name, size, ceiling["matrix_tflops"]))
            save("train_step", result, args.out)
    print_table("train_step", result)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batches", nargs="+", type=int, default=[24, 128])
    parser.add_argument("--variants", nargs="+", choices=VARIANTS, default=list(VARIANTS))
    parser.add_argument("--out", type=Path, default=SPEED)
    args = parser.parse_args()
    main()
