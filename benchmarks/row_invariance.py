"""What bits that do not depend on the batch cost on a GPU: fixed tiles beside the libraries' kernels, for a ViT-B/16 in bfloat16.

    python benchmarks/row_invariance.py              # prints a table, writes results/speed/row_invariance.json
    python benchmarks/row_invariance.py --search     # the products with tiles of other sizes as well

An image has the same bits alone and in every batch if each operation computes a row in the same way whatever the number of rows.
Libraries choose a kernel by that number. Rows: the products and the attention of a block, and those of the ridge regression; the
time for 1, 24 and 256 images, and the numbers of images with which an image has other bits
than among 256.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from _common import BASE, SPEED, measure_ceilings, median_seconds, save
from torch import Tensor

from caprompt.backbones.fixed_tiles import ATTENTION_TILES, TILES, Tiles, attend, linear, multiply

TOKENS, WIDTH, HEADS, PREFIX = BASE.grid**2 + 1, BASE.width, BASE.heads, 5
SHAPES = {"qkv": (WIDTH, 3 * WIDTH), "projection": (WIDTH, WIDTH), "fc1": (WIDTH, 4 * WIDTH), "fc2": (4 * WIDTH, WIDTH)}
BATCHES = (1, 2, 4, 7, 24, 64, 256)
READ_BLOCKS, PROJECTIONS, CLASSES = 6, 10_000, 100
DEVICE = torch.device("cuda")
SEARCHED_TILES = (
    Tiles(128, 128, 64, 8, 3), Tiles(128, 128, 64, 8, 4), Tiles(128, 256, 64, 8, 3), Tiles(256, 128, 64, 8, 3),
    Tiles(64, 256, 64, 4, 3), Tiles(64, 128, 64, 4, 4), Tiles(64, 64, 64, 4, 4),
)  # fmt: skip
Operation = Callable[..., Tensor]  # its tensors have as many images as their first dimension says


def draw(*shape: int, seed: int = 0, scale: float = 1.0, dtype: torch.dtype = torch.bfloat16) -> Tensor:
    """Return random values."""
    return (torch.randn(*shape, generator=torch.Generator(DEVICE).manual_seed(seed), device=DEVICE) * scale).to(dtype)


def attend_by_library(qkv: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    """Attend with PyTorch's own operator."""
    query, key, value = qkv.chunk(3, dim=2)
    joined = (query, torch.cat([keys, key], dim=1), torch.cat([values, value], dim=1))
    heads = (each.unflatten(2, (HEADS, -1)).transpose(1, 2) for each in joined)
    return F.scaled_dot_product_attention(*heads).transpose(1, 2).flatten(2)


def attend_by_tiles(qkv: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    """Attend with fixed tiles."""
    query, key, value = qkv.chunk(3, dim=2)
    return attend(query, key, value, HEADS, (keys, values))


def list_operations(searched: tuple[Tiles, ...]) -> Iterator[tuple[str, str, Operation, list[Tensor]]]:
    """Yield name, kernel, operation and its operands for 256 images."""
    most = max(BATCHES)
    for name, (depth, columns) in SHAPES.items():
        x, weight, bias = draw(most, TOKENS, depth), draw(columns, depth, seed=1, scale=0.02), draw(columns, seed=2)
        yield name, "library", partial(F.linear, weight=weight, bias=bias), [x]
        for tiles in (TILES[16], *searched):
            yield name, str(tiles), partial(linear, weight=weight, bias=bias, tiles=tiles), [x]
    operands = [draw(most, TOKENS, 3 * WIDTH, seed=4), *draw(2, most, PREFIX, WIDTH, seed=5).unbind()]
    yield "attention", "library", attend_by_library, operands
    yield "attention", str(ATTENTION_TILES), attend_by_tiles, operands
    features = draw(most, READ_BLOCKS * WIDTH, seed=6, dtype=torch.float32)
    projection = draw(READ_BLOCKS * WIDTH, PROJECTIONS, seed=7, dtype=torch.float32)
    yield "random projection, float32", "library", lambda x: x @ projection, [features]
    yield "random projection, float32", str(TILES[32]), lambda x: multiply(x, projection), [features]
    weights = draw(PROJECTIONS, CLASSES, seed=8, dtype=torch.float32)
    projected = draw(most, PROJECTIONS, seed=9, dtype=torch.float32)
    yield "ridge weights, float32", "library", lambda x: x @ weights, [projected]
    yield "ridge weights, float32", str(TILES[32]), lambda x: multiply(x, weights), [projected]


def measure(name: str, kernel: str, run: Operation, operands: list[Tensor]) -> dict[str, Any]:
    """Measure one operation, and print its row."""
    expected = run(*operands)
    parts = {count: [each[:count].clone() for each in operands] for count in BATCHES}
    changed = [count for count, part in parts.items() if not torch.equal(run(*part), expected[:count])]
    times = {str(count): 1e6 * median_seconds(partial(run, *parts[count]), repeats=10, warm_up=3) for count in (1, 24, 256)}
    row = {"operation": name, "kernel": kernel, "us": times, "bits_change_with": changed}
    print(f"| {name} | {kernel} | {' | '.join(f'{each:.0f}' for each in times.values())} | {changed or 'none'} |", flush=True)
    return row


def main() -> None:
    """Measure, print, write."""
    ceilings = measure_ceilings(DEVICE)
    print(f"peak {ceilings['matrix_tflops']:.0f} TFLOP/s bf16\n| operation | kernel | us, 1 | 24 | 256 | bits change with |")
    rows = [measure(*operation) for operation in list_operations(SEARCHED_TILES if args.search else ())]
    save("row_invariance", {"ceilings": ceilings, "rows": rows}, args.out)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--search", action="store_true", help="the products with tiles of other sizes as well")
    parser.add_argument("--out", type=Path, default=SPEED)
    args = parser.parse_args()
    main()
