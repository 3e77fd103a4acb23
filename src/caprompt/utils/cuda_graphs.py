"""CapturedFunction functions: on a GPU, work that is the same every time is recorded once as a graph of kernels and then replayed.

A step of a small batch is a thousand small kernels; launched one by one, the GPU waits for the host most of the time.

    step = recorded(step, device)       # on a CPU the function itself
    losses = step(images, labels)       # plain at first, then recorded, then replayed
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Generic, TypeVar

import torch
from torch import Tensor

__all__ = ["CapturedFunction", "capture"]

Result = TypeVar("Result")

WARMUP_CALLS = 3  # before recording: they make what lives on (an optimiser's moments) and let libraries choose their kernels


class CapturedFunction(Generic[Result]):
    """A function of tensors that, after a few calls, is replayed; inputs of other shapes than the first ones are computed plainly.

    What it returns is overwritten by the next call. The function must not wait for the GPU, and what it changes must stay in place.
    """

    def __init__(self, function: Callable[..., Result]) -> None:
        self.function = function
        self.calls = 0
        self.shapes: list[torch.Size] = []
        self.inputs: tuple[Tensor, ...] = ()
        self.graph: torch.cuda.CUDAGraph | None = None

    def __call__(self, *inputs: Tensor) -> Result:
        shapes = [given.shape for given in inputs]
        self.shapes = self.shapes or shapes
        if shapes != self.shapes:
            return self.function(*inputs)
        with torch.cuda.device(inputs[0].device):
            return self.again(*inputs)

    def again(self, *inputs: Tensor) -> Result:
        """A call with inputs of the first call's shapes."""
        if self.graph is None:
            self.calls += 1
            if self.calls <= WARMUP_CALLS:
                return self.aside(*inputs)
            self.graph = self.record(*inputs)
        for own, given in zip(self.inputs, inputs, strict=True):
            own.copy_(given)
        self.graph.replay()
        return self.result

    def aside(self, *inputs: Tensor) -> Result:
        """A plain call on another stream, which is what recording asks of the calls before it."""
        side = capture_stream(inputs[0].device)
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            result = self.function(*inputs)
        torch.cuda.current_stream().wait_stream(side)
        return result

    def record(self, *inputs: Tensor) -> torch.cuda.CUDAGraph:
        """Record a call with inputs of these shapes. Recording computes nothing."""
        self.inputs = tuple(given.clone() for given in inputs)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=capture_stream(inputs[0].device)):
            self.result = self.function(*self.inputs)
        return graph


@cache
def capture_stream(device: torch.device) -> torch.cuda.Stream:
    """The one stream of a GPU that everything is recorded on: products take memory to work in for every stream they are seen on."""
    return torch.cuda.Stream(device)


def capture(function: Callable[..., Result], device: torch.device) -> Callable[..., Result]:
    """The function, recorded where that is possible."""
    return CapturedFunction(function) if device.type == "cuda" else function
