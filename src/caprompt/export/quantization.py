"""Weights of an ONNX graph in fewer bits: as float16, or as 8-bit integers of which every 32 share a scale.

Only the storage changes. The graph converts the weights back to float32 and computes in float32, which every runtime supports. A
runtime that evaluates constants when it loads a file, as ONNX Runtime does, converts them once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from caprompt.errors import OptionError
from caprompt.export.graph_builder import GraphBuilder, Value

if TYPE_CHECKING:
    import onnx

__all__ = ["Weights", "check_weights", "quantize", "store_weights"]

Weights = Literal["fp32", "fp16", "int8"]
MIN_ELEMENTS = 1024  # smaller tensors, such as biases and norms, stay float32
BLOCK = 32  # consecutive weights that share a scale
LEVELS = 127  # of either sign
FLOAT = 1  # type of tensors, as ONNX numbers it


def check_weights(weights: str) -> None:
    """Raise for an unknown name."""
    if weights not in get_args(Weights):
        raise OptionError(f"weights cannot be stored as '{weights}'; there are: {', '.join(get_args(Weights))}")


def store_weights(model: onnx.ModelProto, weights: Weights) -> None:
    """Store the large float32 weights of a graph as float16 or as 8-bit integers, with nodes that convert them back."""
    if weights == "fp32":
        return
    from onnx import numpy_helper

    graph = model.graph
    tensors, nodes = [], []
    for initializer in graph.initializer:
        if initializer.data_type != FLOAT or len(initializer.dims) < 2 or np.prod(initializer.dims) < MIN_ELEMENTS:
            tensors.append(initializer)
            continue
        storage = _Storage(initializer.name)
        values = numpy_helper.to_array(initializer)
        (_store_as_fp16 if weights == "fp16" else _store_as_int8)(storage, values)
        storage.nodes[-1].output[0] = initializer.name
        tensors += storage.tensors
        nodes += storage.nodes
    nodes += graph.node  # a graph lists its nodes in the order of computation
    del graph.initializer[:], graph.node[:]
    graph.initializer.extend(tensors)
    graph.node.extend(nodes)


class _Storage(GraphBuilder):
    """The nodes that restore one tensor, and the tensors that they restore it from."""

    def __init__(self, name: str) -> None:
        super().__init__(f"{name}/")
        self.tensors: list[onnx.TensorProto] = []

    def store(self, array: NDArray[np.generic]) -> Value:
        """Add a stored tensor, as an input of nodes."""
        from onnx import numpy_helper

        self.tensors.append(numpy_helper.from_array(array, f"{self.prefix}stored_{len(self.tensors)}"))
        return self.input(self.tensors[-1].name)


def _store_as_fp16(storage: _Storage, values: NDArray[np.float32]) -> None:
    scale = np.float32(2.0 ** np.ceil(np.log2(max(np.abs(values).max(), np.finfo(np.float32).tiny))))
    half = storage.store((values / scale).astype(np.float16))  # at most 1, so that none overflows and few lose digits
    storage.Mul(storage.Cast(half, to=FLOAT), storage.store(np.array(scale)))


def _store_as_int8(storage: _Storage, values: NDArray[np.float32]) -> None:
    integers, scales = quantize(values)
    restored = storage.Mul(storage.Cast(storage.store(integers), to=FLOAT), storage.store(scales))
    if integers.size != values.size:
        restored = storage.Reshape(restored, storage.integers(-1))
        restored = storage.Slice(restored, storage.integers(0), storage.integers(values.size))
    storage.Reshape(restored, storage.integers(*values.shape))


def quantize(values: NDArray[np.float32]) -> tuple[NDArray[np.int8], NDArray[np.float32]]:
    """Return weights in blocks as 8-bit integers, (n, BLOCK), and the scale of each block, (n, 1); the last block is padded by 0.

    >>> integers, scales = quantize(np.array([[1.0, -0.5, 0.25]], np.float32))
    >>> integers[0, :4].tolist(), integers.shape, scales.shape
    ([127, -64, 32, 0], (1, 32), (1, 1))
    """
    blocks = np.pad(values.ravel(), (0, -values.size % BLOCK)).reshape(-1, BLOCK)
    largest = np.abs(blocks).max(axis=1, keepdims=True)
    scales = np.where(largest > 0, largest / LEVELS, 1).astype(np.float32)
    return np.rint(blocks / scales).astype(np.int8), scales
