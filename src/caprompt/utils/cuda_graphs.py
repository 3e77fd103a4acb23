"""CUDA-graph capture: work that is the same on every call is captured once and then replayed.

A training step on a small batch launches about a thousand small kernels; launched one by one, the
GPU waits for the host most of the time. Replaying a graph launches all of them at once.

    step = capture(step, device)        # on a CPU the function itself
    losses = step(images, labels)       # called eagerly at first, then captured, then replayed
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import cache
from typing import Generic, TypeVar

import torch
from torch import Tensor

__all__ = ["CapturedFunction", "capture"]

Result = TypeVar("Result")


class CapturedFunction(Generic[Result]):
    """A function of tensors that is replayed as a CUDA graph after one warm-up call.

    That call allocates what outlives it (such as optimizer moments) and lets libraries select kernels.

    Only inputs of the shapes of the first call are replayed; other shapes are computed eagerly, and
    not compiled where the function calls torch.compile: the last batch of an epoch is often shorter,
    and compiling it takes longer than that saves. The returned tensors are overwritten by the next
    call. The function must not synchronize with the GPU and must update its state in place.
    """

    def __init__(self, function: Callable[..., Result]) -> None:
        self.function = function
        self.is_warm = False
        self.shapes: list[torch.Size] = []
        self.inputs: tuple[Tensor, ...] = ()
        self.graph: torch.cuda.CUDAGraph | None = None

    def __call__(self, *inputs: Tensor) -> Result:
        shapes = [tensor.shape for tensor in inputs]
        self.shapes = self.shapes or shapes
        if shapes != self.shapes:
            with _without_compiling():
                return self.function(*inputs)
        with torch.cuda.device(inputs[0].device):
            return self._warm_up_or_replay(*inputs)

    def _warm_up_or_replay(self, *inputs: Tensor) -> Result:
        if self.graph is None:
            if not self.is_warm:
                self.is_warm = True
                return self._call_on_capture_stream(*inputs)
            self.graph = self._capture(*inputs)
        for static, tensor in zip(self.inputs, inputs, strict=True):
            static.copy_(tensor)
        self.graph.replay()
        return self.result

    def _call_on_capture_stream(self, *inputs: Tensor) -> Result:
        """Call the function eagerly on a side stream, as capture requires of the warm-up call."""
        stream = _capture_stream(inputs[0].device)
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            result = self.function(*inputs)
        torch.cuda.current_stream().wait_stream(stream)
        return result

    def _capture(self, *inputs: Tensor) -> torch.cuda.CUDAGraph:
        """Capture a call with inputs of these shapes.

        Nothing is computed until the graph is replayed.
        """
        self.inputs = tuple(tensor.clone() for tensor in inputs)
        graph = torch.cuda.CUDAGraph()
        # `torch.cuda.graph` would first wait for the GPU, which has work to do meanwhile, and empty the caches of device and pinned
        # memory, which are then slowly filled again.
        stream = _capture_stream(inputs[0].device)
        # Beginning a capture writes into new memory at once (the state of random numbers). That may be memory which the warm-up
        # call's result had, and which the current stream has still to read.
        stream.wait_stream(torch.cuda.current_stream())
        with _without_garbage_collection(), torch.cuda.stream(stream):
            # Threads that decode images may allocate pinned memory meanwhile.
            graph.capture_begin(capture_error_mode="thread_local")
            try:
                self.result = self.function(*self.inputs)
            finally:
                graph.capture_end()
        return graph


def _without_compiling() -> AbstractContextManager[object]:
    """Return a context in which compiled functions are called as they were before, where PyTorch can do that (2.6)."""
    if "torch._dynamo" not in sys.modules:  # nothing is compiled, and importing the compiler takes seconds
        return nullcontext()
    set_stance = getattr(torch.compiler, "set_stance", None)
    return nullcontext() if set_stance is None else set_stance("force_eager")


@contextmanager
def _without_garbage_collection() -> Iterator[None]:
    """Collect no garbage within the context: freeing what belongs to another stream is not allowed during a capture."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


@cache
def _capture_stream(device: torch.device) -> torch.cuda.Stream:
    """Return the stream of all captures on a GPU: cuBLAS allocates a workspace per stream."""
    return torch.cuda.Stream(device)


def capture(function: Callable[..., Result], device: torch.device) -> Callable[..., Result]:
    """Return the function, captured as a CUDA graph after its first call if the device is a GPU."""
    return CapturedFunction(function) if device.type == "cuda" else function
