"""Whether it pays to compute the GELU of a training step inside the matmuls: a Triton kernel against cuBLAS and a kernel after it.

    python benchmarks/fused_gelu.py                 # prints a table, writes results/speed/fused_gelu.json; needs a GPU

The MLP of a ViT-B/16 block in bfloat16, as the compiled training step has it (`backbones/layers.py`): forward, h = x W1^T + b, the
GELU of h and its derivative in one byte per value; backward, the gradient g W2 times that derivative. Matmul is cuBLAS alone,
element-wise the kernel of `torch.compile` after it, and fused is one Triton kernel for both, with the fastest of `TILES`.
Only passes with gradients could gain: without, cuBLAS computes the GELU itself. Errors are relative to float64.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
import triton
import triton.language as tl
from _common import BASE, SPEED, measure_ceilings, median_seconds, print_table, save
from torch import Tensor

from caprompt.backbones.fixed_tiles import GROUP, Tiles
from caprompt.backbones.layers import STEPS, ZERO, compact_gelu

IMAGES = 256  # of the passes with gradients of the paper's recipe: a batch of 128 with the mixed and with the newest prompt
TILES = [
    Tiles(rows, columns, 64, warps, stages)
    for rows, columns, warps in ((128, 128, 4), (128, 128, 8), (128, 256, 8), (256, 128, 8))
    for stages in (3, 4)
]
FIRST = Tiles(128, 128, 64, 4, 3)


@triton.jit
def _multiply_with_gelu(
    a, b, bias, out, slope, num_rows, num_columns, depth, a_row, b_step, b_column,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, DEPTH: tl.constexpr, GROUP: tl.constexpr, BACKWARD: tl.constexpr,
    STEPS: tl.constexpr, ZERO: tl.constexpr,
):  # fmt: skip
    """Compute a tile of gelu(a b + bias) and the derivative in uint8, or of (a b) times such a derivative."""
    program, row_tiles, column_tiles = tl.program_id(0), tl.cdiv(num_rows, ROWS), tl.cdiv(num_columns, COLUMNS)
    first = (program // (GROUP * column_tiles)) * GROUP
    height = tl.minimum(row_tiles - first, GROUP)
    row_tile = first + (program % (GROUP * column_tiles)) % height
    column_tile = (program % (GROUP * column_tiles)) // height
    rows = row_tile * ROWS + tl.arange(0, ROWS)
    columns = column_tile * COLUMNS + tl.arange(0, COLUMNS)
    steps = tl.arange(0, DEPTH)
    a_tile = a + (rows % num_rows)[:, None] * a_row + steps[None, :]
    b_tile = b + steps[:, None] * b_step + columns[None, :] * b_column
    total = tl.zeros((ROWS, COLUMNS), dtype=tl.float32)
    for _ in range(0, depth, DEPTH):
        total = tl.dot(tl.load(a_tile), tl.load(b_tile), total)
        a_tile += DEPTH
        b_tile += DEPTH * b_step
    places, inside = rows[:, None] * num_columns + columns[None, :], rows[:, None] < num_rows
    if BACKWARD:
        total *= (tl.load(slope + places, mask=inside, other=0).to(tl.float32) - ZERO) * (1 / STEPS)
    else:
        x = total + tl.load(bias + columns).to(tl.float32)[None, :]
        cdf = tl.sigmoid(1.5957691216057308 * x * (1 + 0.044715 * x * x))
        density = cdf * (1 - cdf) * (1.5957691216057308 * (1 + 0.134145 * x * x))
        tl.store(slope + places, ((cdf + x * density) * STEPS + (ZERO + 0.5)).to(tl.uint8), mask=inside)
        total = x * cdf
    tl.store(out + places, total.to(out.dtype.element_ty), mask=inside)


def multiply_with_gelu(
    a: Tensor, b: Tensor, bias: Tensor, slope: Tensor, out: Tensor, tiles: Tiles, backward: bool
) -> tuple[Tensor, Tensor]:
    """Run the kernel on a (n, k) and b (k, m); `slope` (n, m) is written, or read with `backward`."""
    (num_rows, depth), num_columns = a.shape, b.shape[1]
    grid = (triton.cdiv(num_rows, tiles.rows) * triton.cdiv(num_columns, tiles.columns),)
    _multiply_with_gelu[grid](
        a, b, bias, out, slope, num_rows, num_columns, depth, a.stride(0), *b.stride(),
        ROWS=tiles.rows, COLUMNS=tiles.columns, DEPTH=tiles.depth, GROUP=GROUP, BACKWARD=backward, STEPS=STEPS, ZERO=ZERO,
        num_warps=tiles.warps, num_stages=tiles.stages,
    )  # fmt: skip
    return out, slope


def find_fastest(function: Callable[[Tiles], object]) -> tuple[float, Tiles]:
    """Return the time of the fastest tiles, and these; those that do not fit on the device are left out."""
    times = []
    for tiles in TILES:
        try:
            times.append((measure_in_a_row(partial(function, tiles)), tiles))
        except triton.runtime.errors.OutOfResources:
            continue
    return min(times, key=lambda pair: pair[0])


def measure_in_a_row(function: Callable[[], object], repeats: int = 10) -> float:
    """Return the median time of one of ten calls in a row, so that the device never waits for the host."""
    return median_seconds(lambda: [function() for _ in range(10)], repeats, warm_up=2) / 10


def compute_error(value: Tensor, exact: Tensor) -> float:
    """Return the largest difference, relative to the largest exact value."""
    return float((value.double() - exact).abs().max() / exact.abs().max())


def measure() -> list[dict[str, object]]:
    """Measure both directions."""
    tokens, width, hidden = IMAGES * (BASE.grid**2 + 1), BASE.width, BASE.mlp_width
    generator = torch.Generator("cuda").manual_seed(0)

    def draw(*shape: int, scale: float = 1.0) -> Tensor:
        return (scale * torch.randn(*shape, generator=generator, device="cuda")).bfloat16()

    x, gradient = draw(tokens, width), draw(tokens, width)
    first, second, bias = draw(hidden, width, scale=width**-0.5), draw(width, hidden, scale=hidden**-0.5), draw(hidden)
    leaf = draw(tokens, hidden).requires_grad_()
    gelu = torch.compile(compact_gelu)
    activated = gelu(leaf, bias)
    slope = torch.empty(tokens, hidden, dtype=torch.uint8, device="cuda")
    out = torch.empty(tokens, hidden, dtype=torch.bfloat16, device="cuda")
    forward = partial(multiply_with_gelu, x, first.T, bias, slope, out, backward=False)
    backward = partial(multiply_with_gelu, gradient, second, bias, slope, out, backward=True)

    part = x[:512].double() @ first.double().T + bias.double()
    exact = 0.5 * part * (1 + torch.erf(part * math.sqrt(0.5)))
    forward_error = compute_error(forward(FIRST)[0][:512], exact)
    exact_slope = 0.5 * (1 + torch.erf(part * math.sqrt(0.5))) + part * torch.exp(-0.5 * part**2) / math.sqrt(2 * math.pi)
    backward_error = compute_error(backward(FIRST)[0][:512], (gradient[:512].double() @ second.double()) * exact_slope)

    rows = []
    for name, matmul, element_wise, fused, error in (
        ("forward", lambda: x @ first.T, lambda: gelu(leaf, bias), forward, forward_error),
        (
            "backward",
            lambda: gradient @ second,
            lambda: torch.autograd.grad(activated, leaf, out, retain_graph=True),
            backward,
            backward_error,
        ),
    ):
        seconds, tiles = find_fastest(lambda tiles, fused=fused: fused(tiles=tiles))  # type: ignore[misc]
        matmul_seconds, rest_seconds = measure_in_a_row(matmul), measure_in_a_row(element_wise)
        rows.append(
            {
                "direction": name,
                "matmul_ms": 1e3 * matmul_seconds,
                "element_wise_ms": 1e3 * rest_seconds,
                "fused_ms": 1e3 * seconds,
                "tiles": str(tiles),
                "error": error,
            }
        )
    return rows


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=SPEED)
    args = parser.parse_args()
    result = {"ceilings": measure_ceilings(torch.device("cuda")), "blocks": BASE.depth, "images": IMAGES, "rows": measure()}
    print_table("fused_gelu", result)
    save("fused_gelu", result, args.out)


if __name__ == "__main__":
    main()
