"""Preprocessing as an ONNX graph: pixels of any size become the input of the backbone, as `EvalTransform` makes it.

    images whose short side exceeds `DECODE_FACTOR` times the backbone's size are reduced to that (Lanczos)
    the short side is resized to `resize` (bicubic), the central square is cropped, and normalized

An antialiased resize is linear along each axis, and Pillow rounds to integer levels after each axis. Its weights have 22 bits
after the binary point, so that float64 computes its sums exactly: the pixels are Pillow's, but for a rare one that differs by one
level. ONNX's own operator Resize rounds once, after both axes, and differs by up to 20 levels at sharp edges.

An output pixel depends on few pixels of the input. The product with a full matrix of weights would take minutes for a large photo,
so outputs are computed in groups, each from the window of the input that it depends on.

Shapes: N images of H x W pixels; L pixels along the axis that is resized, M along the other; G groups of `GROUP` outputs, each
with a window of P inputs; S x S pixels of the backbone's input.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import pi
from typing import TYPE_CHECKING

import numpy as np
import PIL

from caprompt.data.transforms import EvalTransform
from caprompt.export.graph_builder import GraphBuilder, Value

if TYPE_CHECKING:
    import onnx

__all__ = ["IMAGES", "add_preprocessing"]

IMAGES = "images"  # input of the graph
GROUP = 16  # outputs that share a window; windows of fewer overlap more, those of more have larger matrices of weights
WEIGHT_BITS = 22  # of Pillow's weights, after the binary point
# Since version 13, Pillow resizes rows before columns where an image loses more than twice as many rows as columns.
ROWS_MAY_BE_FIRST = int(PIL.__version__.partition(".")[0]) >= 13
ROWS_IN_FRONT, COLUMNS_IN_FRONT, SWAPPED = (1, 0, 2, 3), (2, 0, 1, 3), (2, 1, 0, 3)  # orders of axes
DOUBLE, FLOAT, INT64, UINT8 = 11, 1, 7, 2  # types of tensors, as ONNX numbers them

Kernel = Callable[[Value], Value]


def add_preprocessing(model: onnx.ModelProto, transform: EvalTransform, shrink_to: int) -> None:
    """Put preprocessing in front of a graph whose input is (N, 3, S, S) float32: it becomes `images`, (N, H, W, 3) uint8.

    `shrink_to` is the short side that larger images are first reduced to.
    """
    from onnx import helper

    graph = model.graph
    (network_input,) = graph.input
    builder = GraphBuilder("preprocessing/")
    normalize(render(builder, builder.input(IMAGES), transform, shrink_to), transform)
    builder.nodes[-1].output[0] = network_input.name
    nodes = [*builder.nodes, *graph.node]  # a graph lists its nodes in the order of computation
    graph.value_info.append(network_input)
    del graph.input[:], graph.node[:]
    graph.node.extend(nodes)
    graph.input.append(helper.make_tensor_value_info(IMAGES, UINT8, ["batch", "height", "width", 3]))


@dataclass(frozen=True)
class Axis:
    """A resize along one axis: `length` pixels become `resized`, of which `size` from `corner` are computed."""

    length: Value
    resized: Value
    corner: Value
    size: Value


def render(builder: GraphBuilder, images: Value, transform: EvalTransform, shrink_to: int) -> Value:
    """Reduce, resize and crop images: (N, H, W, 3) uint8 -> (S, N, S, 3) uint8."""
    (short_side, _) = transform.make_view(1, 1).resized  # after resizing, whatever the image
    shape = builder.Cast(builder.Shape(images), to=DOUBLE)
    height, width = (builder.Gather(shape, builder.integers(index), axis=0) for index in (1, 2))
    short = builder.Min(height, width)
    shrunk = [builder.Round(length * builder.Min(short, float(shrink_to)) / short) for length in (height, width)]
    short = builder.Min(*shrunk)
    resized = [builder.Floor(float(short_side) * length / short) for length in shrunk]
    corner = [builder.Round((length - transform.size) / 2) for length in resized]

    zero = builder.constant(np.zeros(1))
    rows, columns = (
        Axis(length, less, zero, builder.Cast(less, to=INT64)) for length, less in zip((height, width), shrunk, strict=True)
    )
    pixels = resize(builder, builder.Transpose(images, perm=ROWS_IN_FRONT), rows, columns, lanczos, support=3)
    size = builder.integers(transform.size)
    rows, columns = (Axis(*lengths, size) for lengths in zip(shrunk, resized, corner, strict=True))
    return resize(builder, pixels, rows, columns, bicubic, support=2)


def normalize(pixels: Value, transform: EvalTransform) -> Value:
    """Normalize pixels: (S, N, S, 3) uint8 -> (N, 3, S, S) float32."""
    builder = pixels.builder
    values = builder.Cast(builder.Transpose(pixels, perm=(1, 3, 0, 2)), to=FLOAT)
    values = builder.Reshape(values, builder.integers(-1, 3, transform.size, transform.size))  # states the known sizes
    mean, std = (builder.constant(np.array(part, np.float32)[:, None, None]) for part in (transform.mean, transform.std))
    return (values / builder.constant(np.array(255, np.float32)) - mean) / std


def resize(builder: GraphBuilder, pixels: Value, rows: Axis, columns: Axis, kernel: Kernel, support: int) -> Value:
    """Resize along both axes in Pillow's order: (H, N, W, 3) uint8 -> (rows.size, N, columns.size, 3) uint8."""
    if not ROWS_MAY_BE_FIRST:
        pixels = resample(builder.Transpose(pixels, perm=SWAPPED), columns, kernel, support)
        return resample(builder.Transpose(pixels, perm=SWAPPED), rows, kernel, support)
    lost_rows, lost_columns = rows.length - rows.resized, columns.length - columns.resized
    rows_first = (lost_rows > 0) & (lost_rows > 2 * lost_columns)
    columns_first = builder.Not(rows_first)
    first, second = (
        Axis(*(builder.Where(rows_first, *pair) for pair in zip(vars(one).values(), vars(other).values(), strict=True)))
        for one, other in ((rows, columns), (columns, rows))
    )
    pixels = resample(swap_if(columns_first, pixels), first, kernel, support)
    pixels = resample(builder.Transpose(pixels, perm=SWAPPED), second, kernel, support)
    return swap_if(rows_first, pixels)


def swap_if(condition: Value, pixels: Value) -> Value:
    """Swap rows and columns on a condition: (H, N, W, 3) -> (W, N, H, 3)."""
    return condition.builder.choose(
        condition, lambda branch: branch.Transpose(pixels, perm=SWAPPED), lambda branch: branch.Identity(pixels)
    )


def resample(pixels: Value, axis: Axis, kernel: Kernel, support: int) -> Value:
    """Resize along the first axis: (L, N, M, 3) uint8 -> (size, N, M, 3) uint8."""
    builder, all_others = pixels.builder, pixels.builder.integers(-1)
    pixel, weights = make_windows(builder, axis, kernel, support)  # (G, 1, P), (G, GROUP, P)
    inside = builder.Cast(builder.Min(pixel, axis.length - 1), to=INT64)  # pixels beyond the last one have weight 0
    flat = builder.Reshape(pixels, builder.integers(0, -1))  # (L, N M 3)
    windows = builder.Gather(flat, builder.Reshape(inside, all_others), axis=0)  # (G P, N M 3)
    sizes = builder.Shape(weights)  # G, GROUP, P
    groups, length = (builder.Gather(sizes, builder.integers(index), axis=0) for index in (0, 2))
    windows = builder.Reshape(builder.Cast(windows, to=DOUBLE), builder.Concat(groups, length, all_others, axis=0))
    sums = builder.MatMul(weights, windows)  # (G, GROUP, N M 3)
    sums = builder.Reshape(sums, builder.Concat(groups * builder.integers(GROUP), all_others, axis=0))
    sums = builder.Slice(sums, builder.integers(0), axis.size, builder.integers(0))  # (size, N M 3)
    levels = builder.Cast(builder.Clip(builder.Floor(sums + 0.5), 0.0, 255.0), to=UINT8)
    return builder.Reshape(levels, builder.Concat(axis.size, builder.Shape(pixels, start=1), axis=0))


def make_windows(builder: GraphBuilder, axis: Axis, kernel: Kernel, support: int) -> tuple[Value, Value]:
    """Return the pixels of each group's window, (G, 1, P), and their weights in each output of the group, (G, GROUP, P).

    `kernel` is zero beyond `support`; it is stretched where the axis becomes shorter (antialiasing).
    """
    scale = axis.length / axis.resized
    stretch = builder.Max(scale, 1.0)
    group = builder.integers(GROUP)
    groups = (axis.size + builder.integers(GROUP - 1)) / group  # G; integers are divided as in C
    center = (arange(builder, groups * group) + axis.corner + 0.5) * scale
    center = builder.Reshape(center, builder.integers(-1, GROUP, 1))
    first = builder.Max(builder.Floor(center - support * stretch + 0.5), 0.0)
    last = builder.Min(builder.Floor(center + support * stretch + 0.5), axis.length)
    start, end = (builder.Gather(part, builder.integers(index), axis=1) for part, index in ((first, 0), (last, -1)))  # (G, 1, 1)
    length = builder.Cast(builder.Reshape(builder.ReduceMax(end - start), builder.integers(1)), to=INT64)  # P
    pixel = start + arange(builder, length)
    weights = kernel((pixel - center + 0.5) * (1 / stretch))
    weights = builder.Where((pixel >= first) & (pixel < last), weights, 0.0)
    weights = weights / builder.ReduceSum(weights, builder.integers(2))
    one = 2.0**WEIGHT_BITS
    return pixel, builder.Sign(weights) * builder.Floor(builder.Abs(weights) * one + 0.5) / one


def arange(builder: GraphBuilder, count: Value) -> Value:
    """Return 0, 1, ... as float64; `count` is a vector of one integer."""
    zero, one = (builder.constant(np.array(value, np.int64)) for value in (0, 1))
    return builder.Cast(builder.Range(zero, builder.Squeeze(count), one), to=DOUBLE)


def bicubic(x: Value) -> Value:
    """Evaluate Keys' cubic kernel with a = -0.5."""
    where, x = x.builder.Where, x.builder.Abs(x)
    near, far = (1.5 * x - 2.5) * x * x + 1, ((-0.5 * x + 2.5) * x - 4) * x + 2
    return where(x < 1, near, where(x < 2, far, 0.0))


def lanczos(x: Value) -> Value:
    """Evaluate the Lanczos kernel of three lobes."""
    return x.builder.Where(x.builder.Abs(x) < 3, sinc(x) * sinc(x / 3), 0.0)


def sinc(x: Value) -> Value:
    """Evaluate sin(pi x) / (pi x), which is 1 at 0."""
    builder = x.builder
    is_zero, x = builder.Equal(x, 0.0), x * pi
    return builder.Where(is_zero, 1.0, builder.Sin(x) / builder.Where(is_zero, 1.0, x))
