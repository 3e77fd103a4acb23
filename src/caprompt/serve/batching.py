"""Predictions of several clients in one batch: an answer does not depend on its batch, so this changes nothing but the speed.

One thread runs the network. While it is busy, requests gather by themselves; otherwise the first one waits a few milliseconds for
others, but only if others are on their way.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

import torch
from numpy.typing import NDArray

from caprompt.methods.base import MethodOutput
from caprompt.serve.served_models import LoadedModel

__all__ = ["MAX_WAIT", "Batcher", "select_rows"]

MAX_WAIT = 0.005  # seconds that a request waits for others
MAX_BATCH = 64  # images


@dataclass(eq=False)
class _Request:
    model: LoadedModel
    images: Sequence[NDArray[Any]]
    future: Future[MethodOutput] = field(default_factory=Future)
    arrived: float = field(default_factory=time.monotonic)


class Batcher:
    """Runs the network for all clients, in one thread."""

    def __init__(self, on_batch: Callable[[int, float], None] = lambda images, seconds: None) -> None:
        self.on_batch = on_batch  # called with the number of images and the seconds of each batch
        self.expected = 0  # requests that have been announced and not submitted yet
        self._waiting: list[_Request] = []
        self._changed = threading.Condition()
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="caprompt-network", daemon=True)
        self._thread.start()

    def announce(self, change: int) -> None:
        """Say that a request is being decoded (+1), or no longer (-1): only then is it worth waiting for."""
        with self._changed:
            self.expected += change
            self._changed.notify()

    def submit(self, model: LoadedModel, images: Sequence[NDArray[Any]]) -> Future[MethodOutput]:
        """Return the output for prepared images, once it is there."""
        request = _Request(model, images)
        with self._changed:
            if self._closed:
                raise RuntimeError("the batcher is closed")
            self._waiting.append(request)
            self._changed.notify()
        return request.future

    def close(self) -> None:
        """Finish what has been submitted, and stop."""
        with self._changed:
            self._closed = True
            self._changed.notify()
        self._thread.join()

    def _run(self) -> None:
        while requests := self._gather():
            start = time.monotonic()
            try:
                with torch.inference_mode():
                    output = requests[0].model.compute_output([image for request in requests for image in request.images])
            except BaseException as error:
                for request in requests:
                    request.future.set_exception(error)
                continue
            position = 0
            self.on_batch(len(output.passes), time.monotonic() - start)
            for request in requests:
                request.future.set_result(select_rows(output, position, len(request.images)))
                position += len(request.images)

    def _gather(self) -> list[_Request]:
        """Wait for requests and return those of the next batch, all for one version of a model; none after the end."""
        with self._changed:
            while self._changed.wait_for(lambda: self._waiting or self._closed) and self._waiting:
                deadline = self._waiting[0].arrived + MAX_WAIT
                while self.expected and not self._closed and sum(len(each.images) for each in self._waiting) < MAX_BATCH:
                    left = deadline - time.monotonic()
                    if left <= 0 or not self._changed.wait(left):
                        break
                if taken := self._take():
                    return taken
            return []

    def _take(self) -> list[_Request]:
        """Remove the next requests and return those whose clients still wait: the rest were canceled."""
        model, count = self._waiting[0].model, 0
        taken: list[_Request] = []
        for request in list(self._waiting):
            if request.model is model and (not taken or count + len(request.images) <= MAX_BATCH):
                self._waiting.remove(request)
                if request.future.set_running_or_notify_cancel():
                    taken.append(request)
                    count += len(request.images)
        return taken


def select_rows(output: MethodOutput, start: int, count: int) -> MethodOutput:
    """Return the rows of an output that belong to one request.

    >>> output = MethodOutput(torch.arange(3.0)[:, None], torch.ones(3, 1), torch.ones(3))
    >>> select_rows(output, 1, 2).logits.tolist()
    [[1.0], [2.0]]
    """
    rows = slice(start, start + count)
    return MethodOutput(output.logits[rows], output.task_weights[rows], output.passes[rows])
