"""Building of ONNX graphs from expressions: `(x + 1) * y` adds two nodes.

Numbers in expressions are float64; integers, as shapes and indices need them, are written as `builder.integers(...)`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    import onnx

__all__ = ["GraphBuilder", "Operand", "Value"]

Operand: TypeAlias = "Value | float"


class GraphBuilder:
    """Nodes in the order of computation. Any operator of ONNX is a method: `builder.Floor(x)`, `builder.Gather(x, i, axis=1)`."""

    def __init__(self, prefix: str = "") -> None:
        self.prefix = prefix
        self.nodes: list[onnx.NodeProto] = []

    def __getattr__(self, operator: str) -> Callable[..., Value]:
        if not operator[0].isupper():
            raise AttributeError(operator)
        return lambda *inputs, **attributes: self.add(operator, inputs, **attributes)

    def add(self, operator: str, inputs: Sequence[Operand], **attributes: Any) -> Value:
        """Add a node and return its output."""
        from onnx import helper

        names = [self._convert(each).name for each in inputs]
        output = f"{self.prefix}{operator}_{len(self.nodes)}"
        self.nodes.append(helper.make_node(operator, names, [output], **attributes))
        return Value(self, output)

    def constant(self, array: NDArray[Any]) -> Value:
        """Add a constant tensor."""
        from onnx import numpy_helper

        return self.add("Constant", (), value=numpy_helper.from_array(array))

    def integers(self, *values: int) -> Value:
        """Add a constant vector of integers."""
        return self.constant(np.array(values, np.int64))

    def input(self, name: str) -> Value:
        """Return an input of the graph."""
        return Value(self, name)

    def choose(self, condition: Value, first: Callable[[GraphBuilder], Value], second: Callable[[GraphBuilder], Value]) -> Value:
        """Add a node that computes one of two expressions, each with a builder of its own; they may use values of this one."""
        branches = [self._build_branch(name, build) for name, build in (("then", first), ("else", second))]
        return self.add("If", [condition], then_branch=branches[0], else_branch=branches[1])

    def _build_branch(self, name: str, build: Callable[[GraphBuilder], Value]) -> onnx.GraphProto:
        from onnx import helper

        builder = GraphBuilder(f"{self.prefix}If_{len(self.nodes)}_{name}_")
        output = build(builder)
        return helper.make_graph(builder.nodes, name, [], [helper.make_empty_tensor_value_info(output.name)])

    def _convert(self, operand: Operand) -> Value:
        return operand if isinstance(operand, Value) else self.constant(np.array(operand, np.float64))


@dataclass(frozen=True, eq=False)
class Value:
    """A tensor of a graph that is being built."""

    builder: GraphBuilder
    name: str

    def __add__(self, other: Operand) -> Value:
        return self.builder.Add(self, other)

    def __sub__(self, other: Operand) -> Value:
        return self.builder.Sub(self, other)

    def __mul__(self, other: Operand) -> Value:
        return self.builder.Mul(self, other)

    def __rmul__(self, other: float) -> Value:
        return self.builder.Mul(other, self)

    def __truediv__(self, other: Operand) -> Value:
        return self.builder.Div(self, other)

    def __rtruediv__(self, other: float) -> Value:
        return self.builder.Div(other, self)

    def __lt__(self, other: Operand) -> Value:
        return self.builder.Less(self, other)

    def __gt__(self, other: Operand) -> Value:
        return self.builder.Greater(self, other)

    def __ge__(self, other: Operand) -> Value:
        return self.builder.GreaterOrEqual(self, other)

    def __and__(self, other: Value) -> Value:
        return self.builder.And(self, other)
