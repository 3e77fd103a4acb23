"""Speed of CAPrompt's prediction on a GPU: ViT-B/16, 224 px, two cycles, ten tasks of ten classes.

    python benchmarks/prediction.py                  # prints a table, writes results/speed/prediction.json

Rows: the plain baseline (a pass over all tokens from the pixels for each cycle, each kernel launched by itself) in float32, TF32
and bfloat16; the package's predictor with the paper's head, and with the default's regression of 10,000 projections.
Shares are of the peak matmul rate measured in the same run; two cycles are two forward passes of 35 GFLOP an image.
"""

from __future__ import annotations

import argparse
import itertools
from functools import partial
from pathlib import Path
from typing import Any

import torch
from _common import (
    BASE,
    SPEED,
    Variant,
    count_forward_gflop,
    make_batch,
    measure_ceilings,
    median_seconds,
    print_table,
    profile_kernels,
    save,
)
from torch import Tensor

from caprompt.engine.inference import Predictor
from caprompt.methods.caprompt import CAPrompt
from caprompt.methods.components.prefix import Prefix

GFLOP = 2 * count_forward_gflop(BASE)
VARIANTS = {
    "plain fp32": Variant(torch.float32, plain=True),
    "plain TF32": Variant(torch.float32, plain=True, tf32=True),
    "plain bf16": Variant(torch.bfloat16, plain=True),
    "package, fp32": Variant(torch.float32),
    "package, bf16": Variant(torch.bfloat16),
    "default recipe, bf16": Variant(torch.bfloat16, recipe="ridge", projections=10_000),
}


@torch.no_grad()
def predict_plainly(method: CAPrompt, images: Tensor) -> Tensor:
    """Predict with two cycles, from equal weights; return logits."""
    prompts, weights = torch.stack(method.prompts), images.new_full((len(images), len(method.prompts)), 1 / len(method.prompts))
    for _ in range(2):
        rows = torch.einsum("bt,tlknd->lkbnd", weights, prompts)
        logits: Tensor = method.head(method.vit.encode(images, Prefix(rows, method.layers))[:, 0])
        weights = method.compute_task_weights(logits)
    return logits


def measure(name: str, size: int, ceiling: float) -> dict[str, Any]:
    """Measure one row: speed, memory, share of the peak rate, time by kind of kernel."""
    method = VARIANTS[name].build(tasks=10)
    predictor = partial(predict_plainly, method) if VARIANTS[name].plain else Predictor(method, size)
    images, _ = make_batch(method, size)
    torch.cuda.reset_peak_memory_stats()
    seconds = median_seconds(lambda: predictor(images))
    share = GFLOP * 1e9 * size / seconds / (ceiling * 1e12)
    speed = {"images_per_s": size / seconds, "ms": seconds * 1e3, "gb": torch.cuda.max_memory_allocated() / 1e9}
    spent = profile_kernels(lambda: predictor(images))
    return {"variant": name, "batch": size, **speed, "share_of_ceiling": share, "where": spent}


def main() -> None:
    """Measure, print, write."""
    ceiling = measure_ceilings(torch.device("cuda"))
    print(f"peak rates: {ceiling['matrix_tflops']:.0f} TFLOP/s bf16, {ceiling['copy_tb_per_s']:.2f} TB/s")
    result: dict[str, Any] = {"ceilings": ceiling, "rows": []}
    for name, size in itertools.product(args.variants, args.batches):
        result["rows"].append(measure(name, size, ceiling["matrix_tflops"]))
        save("prediction", result, args.out)
    print_table("prediction", result)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batches", nargs="+", type=int, default=[1, 24, 256])
    parser.add_argument("--variants", nargs="+", default=list(VARIANTS))
    parser.add_argument("--out", type=Path, default=SPEED)
    args = parser.parse_args()
    main()
