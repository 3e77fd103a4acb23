"""Rendering of views on a GPU: the two kernels of `data/fused_rendering.py` against separate operations of PyTorch.

    python benchmarks/rendering.py                  # prints a table, writes results/speed/rendering.json; needs a GPU
    python benchmarks/rendering.py --tiles          # also the kernels with other tiles

Random pixels on the device become views of 224 x 224 pixels: the same view of all images as at prediction (the central 0.875 of
the short side), or a random view of each as in training. Times of random views include the computation of their weights.
Both ways give the same bits, which is checked first.
"""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from _common import SPEED, measure_ceilings, median_seconds, print_table, save

from caprompt.data import fused_rendering, gpu_transforms
from caprompt.data.gpu_transforms import render_batch
from caprompt.data.transforms import EvalTransform, TrainTransform, Transform, View

SIDE = 224
MEAN, STD = (0.48, 0.46, 0.41), (0.27, 0.26, 0.28)
TEST, TRAIN = EvalTransform(SIDE, MEAN, STD, resize=256), TrainTransform(SIDE, MEAN, STD)
CASES: tuple[tuple[Transform, int, int, int], ...] = (  # images of height and width
    (TEST, 256, 224, 224),
    (TEST, 128, 375, 500),
    (TEST, 1, 224, 224),
    (TRAIN, 16, 375, 500),
    (TRAIN, 128, 64, 64),
)
SHAPES = ((64, 32, 4), (64, 32, 8), (64, 64, 4), (64, 64, 8), (128, 32, 8))  # rows, columns, warps
TILES = [
    ({"ROWS": rows, "COLUMNS": columns, "DEPTH": depth}, warps)
    for (rows, columns, warps), depth in itertools.product(SHAPES, (32, 64))
]


def make_views(transform: Transform, count: int, height: int, width: int) -> list[View]:
    """Return the views of a batch."""
    rng = np.random.default_rng(0)
    if isinstance(transform, TrainTransform):
        return [transform.make_view(width, height, rng) for _ in range(count)]
    return [TEST.make_view(width, height)] * count


def measure(transform: Transform, count: int, height: int, width: int) -> dict[str, Any]:
    """Measure one case both ways."""
    rng = torch.Generator(device="cuda").manual_seed(0)
    pixels = torch.randint(0, 256, (count, height, width, 3), generator=rng, device="cuda", dtype=torch.uint8)
    render = partial(render_batch, pixels, make_views(transform, count, height, width), transform)
    with patch.object(gpu_transforms, "has_triton", lambda device: False):
        expected, separate = render(), median_seconds(render)
    assert torch.equal(render(), expected)
    names = {"images": count, "height": height, "width": width, "views": "random" if transform is TRAIN else "the same"}
    tiles = measure_tiles(render) if args.tiles else []
    return {**names, "separate_ms": 1e3 * separate, "fused_ms": 1e3 * median_seconds(render), "tiles": tiles}


def measure_tiles(render: Any) -> Sequence[dict[str, Any]]:
    """Measure the kernels with other tiles."""
    rows = []
    for tile, warps in TILES:
        with patch.object(fused_rendering, "TILE", tile), patch.object(fused_rendering, "WARPS", warps):
            rows.append({**tile, "warps": warps, "ms": 1e3 * median_seconds(render)})
            print(rows[-1], flush=True)
    return rows


def main() -> None:
    """Measure, print and write."""
    result = {"ceilings": measure_ceilings(torch.device("cuda")), "rows": [measure(*case) for case in CASES]}
    save("rendering", result, args.out)
    print_table("rendering", result)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tiles", action="store_true", help="also other tiles")
    parser.add_argument("--out", type=Path, default=SPEED)
    args = parser.parse_args()
    main()
