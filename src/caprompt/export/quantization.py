"""Weights of an ONNX graph in fewer bits: float16, or 8-bit integers with a scale per row or column.

Only the storage changes. The graph converts the weights back to float32 and computes in float32, which every runtime supports; a
runtime may do so once, when it loads the file.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from caprompt.errors import OptionError

if TYPE_CHECKING:
    import onnx

__all__ = ["Weights", "check_weights", "quantize", "store_weights"]

Weights = Literal["fp32", "fp16", "int8"]
MIN_ELEMENTS = 1024  # smaller tensors, such as biases and norms, stay float32
LEVELS = 127  # of either sign


def check_weights(weights: str) -> None:
    """Raise for an unknown name."""
    if weights not in get_args(Weights):
        raise OptionError(f"weights cannot be stored as '{weights}'; there are: {', '.join(get_args(Weights))}")


def store_weights(model: onnx.ModelProto, weights: Weights) -> None:
    """Store the large float32 weights of a graph as float16 or as 8-bit integers, with nodes that convert them back."""
    if weights == "fp32":
        return
    from onnx import TensorProto, numpy_helper

    convert = _convert_to_fp16 if weights == "fp16" else _convert_to_int8
    kept, stored, nodes = [], [], []
    for initializer in model.graph.initializer:
        is_weight = initializer.data_type == TensorProto.FLOAT and len(initializer.dims) > 1
        if is_weight and np.prod(initializer.dims) >= MIN_ELEMENTS:
            tensors, node = convert(initializer.name, numpy_helper.to_array(initializer))
            stored += tensors
            nodes.append(node)
        else:
            kept.append(initializer)
    nodes += model.graph.node  # a graph lists its nodes in the order of computation
    del model.graph.initializer[:], model.graph.node[:]
    model.graph.initializer.extend([*kept, *stored])
    model.graph.node.extend(nodes)


def quantize(values: NDArray[np.float32]) -> tuple[NDArray[np.int8], NDArray[np.float32], int]:
    """Return 8-bit integers, their scales along one axis, and that axis: the one with the smallest squared error.

    >>> values = np.array([[1.0, -1.0], [100.0, 50.0]], np.float32)
    >>> integers, scales, axis = quantize(values)
    >>> integers.tolist(), axis
    ([[127, -127], [127, 64]], 0)
    """
    candidates = [(*_quantize_along(values, axis), axis) for axis in range(values.ndim)]
    return min(candidates, key=lambda each: _squared_error(values, *each))


def _quantize_along(values: NDArray[np.float32], axis: int) -> tuple[NDArray[np.int8], NDArray[np.float32]]:
    others = tuple(other for other in range(values.ndim) if other != axis)
    largest = np.abs(values).max(axis=others, keepdims=True)
    scales = np.where(largest > 0, largest / LEVELS, 1).astype(np.float32)
    return np.rint(values / scales).astype(np.int8), scales.ravel()


def _squared_error(values: NDArray[np.float32], integers: NDArray[np.int8], scales: NDArray[np.float32], axis: int) -> float:
    shape = [-1 if other == axis else 1 for other in range(values.ndim)]
    return float(np.square(integers * scales.reshape(shape) - values).sum())


def _convert_to_int8(name: str, values: NDArray[np.float32]) -> tuple[list[onnx.TensorProto], onnx.NodeProto]:
    from onnx import helper, numpy_helper

    integers, scales, axis = quantize(values)
    names = [f"{name}.integers", f"{name}.scales"]
    tensors = [numpy_helper.from_array(array, own) for array, own in zip((integers, scales), names, strict=True)]
    return tensors, helper.make_node("DequantizeLinear", names, [name], axis=axis)


def _convert_to_fp16(name: str, values: NDArray[np.float32]) -> tuple[list[onnx.TensorProto], onnx.NodeProto]:
    from onnx import TensorProto, helper, numpy_helper

    half = f"{name}.half"
    return [numpy_helper.from_array(values.astype(np.float16), half)], helper.make_node(
        "Cast", [half], [name], to=TensorProto.FLOAT
    )
