"""Speed of CAPrompt's prediction on a GPU: ViT-B/16, 224 px, two cycles, ten tasks of ten classes.

    python benchmarks/prediction.py                  # prints a table, writes benchmarks/results/prediction.json

Shares are of the matrix ceiling measured in the same run; two cycles are two forward passes of 35 GFLOP an image. Random images on
random weights are all close decisions, so what `Predictor` asks again is left out; `invariance.py` counts it on real images.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import torch
from measuring import BASE, RESULTS, Variant, batch, ceilings, forward_gflop, median_seconds, save, where_time_goes
from page import prediction

from caprompt.engine.inference import Predictor

GFLOP = 2 * forward_gflop(BASE)
VARIANTS = {
    "fp32": Variant(torch.float32),
    "bf16": Variant(torch.bfloat16),
    "bf16, compiled": Variant(torch.bfloat16, compiled=True),
    "fp8, compiled": Variant(torch.bfloat16, compiled=True, in_fp8=True),
}


def measure(name: str, size: int, ceiling: float) -> dict[str, Any]:
    """One row."""
    method = VARIANTS[name].applied(tasks=10)
    ask = Predictor(method, size)
    images, _ = batch(method, size)
    torch.cuda.reset_peak_memory_stats()
    seconds = median_seconds(lambda: ask.together(images))
    share = GFLOP * 1e9 * size / seconds / (ceiling * 1e12)
    figures = {"images_per_s": size / seconds, "ms": seconds * 1e3, "gb": torch.cuda.max_memory_allocated() / 1e9}
    spent = where_time_goes(lambda: ask.together(images))
    return {"variant": name, "batch": size, **figures, "share_of_ceiling": share, "where": spent}


def main() -> None:
    """Measure, print, write."""
    ceiling = ceilings(torch.device("cuda"))
    print(f"ceilings: {ceiling['matrix_tflops']:.0f} TFLOP/s bf16, {ceiling['copy_tb_per_s']:.2f} TB/s")
    rows = [measure(name, size, ceiling["matrix_tflops"]) for name in args.variants for size in args.batches]
    figures = {"ceilings": ceiling, "rows": rows}
    print(prediction(figures))
    save("prediction", figures, args.out)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batches", nargs="+", type=int, default=[1, 24, 256])
    parser.add_argument("--variants", nargs="+", default=list(VARIANTS))
    parser.add_argument("--out", type=Path, default=RESULTS)
    args = parser.parse_args()
    main()
