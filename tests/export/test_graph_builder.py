"""Expressions become nodes that ONNX Runtime evaluates."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from numpy.typing import NDArray

from caprompt.export.graph_builder import GraphBuilder, Value

onnx = pytest.importorskip("onnx", reason="onnx is not installed")
onnxruntime = pytest.importorskip("onnxruntime", reason="onnxruntime is not installed")


def evaluate(build: Callable[[Value], Value], x: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return what ONNX Runtime computes for an expression in `x`."""
    builder = GraphBuilder()
    output = build(builder.input("x"))
    info = onnx.helper.make_tensor_value_info("x", onnx.TensorProto.DOUBLE, [None])
    graph = onnx.helper.make_graph(builder.nodes, "test", [info], [onnx.helper.make_empty_tensor_value_info(output.name)])
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 18)], ir_version=10)
    session = onnxruntime.InferenceSession(model.SerializeToString())
    result: NDArray[np.float64] = session.run(None, {"x": x})[0]
    return result


X = np.array([-2.0, 0.0, 0.5, 3.0])


@pytest.mark.parametrize(
    ("build", "expected"),
    [
        (lambda x: (2 * x + 1) * x - x / 4, (2 * X + 1) * X - X / 4),
        (lambda x: 1 / (x + 4), 1 / (X + 4)),
        (lambda x: x.builder.Where((x > -1) & (x < 1), x, 9.0), np.where((X > -1) & (X < 1), X, 9)),
        (lambda x: x.builder.Where(x >= 0.5, x - 1, x), np.where(X >= 0.5, X - 1, X)),
        (lambda x: x.builder.Gather(x, x.builder.integers(3, 0), axis=0), X[[3, 0]]),
        (lambda x: x + x.builder.constant(np.arange(4.0)), X + np.arange(4)),
    ],
)
def test_expressions(build: Callable[[Value], Value], expected: NDArray[np.float64]) -> None:
    np.testing.assert_allclose(evaluate(build, X), expected)


@pytest.mark.parametrize(("bound", "factor"), [(0.0, 10), (99.0, -1)])
def test_one_of_two_expressions(bound: float, factor: int) -> None:
    def build(x: Value) -> Value:
        builder = x.builder
        largest = builder.ReduceMax(x, keepdims=0)
        return builder.choose(largest > bound, lambda branch: branch.Mul(x, 10.0), lambda branch: branch.Neg(x))

    np.testing.assert_array_equal(evaluate(build, X), factor * X)


def test_only_operators_are_methods() -> None:
    with pytest.raises(AttributeError, match="floor"):
        GraphBuilder().floor(1.0)
