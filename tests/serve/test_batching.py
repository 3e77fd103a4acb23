from __future__ import annotations

import threading
import time
from typing import Any

import numpy as np
import pytest
import torch

from caprompt.methods.base import MethodOutput
from caprompt.serve.batching import MAX_BATCH, Batcher


class Echo:
    """A model whose logits are the images themselves, so that every answer can be told from the others."""

    def __init__(self) -> None:
        self.sizes: list[int] = []
        self.may_run = threading.Event()
        self.may_run.set()

    def compute_output(self, prepared: Any) -> MethodOutput:
        assert self.may_run.wait(10)
        self.sizes.append(len(prepared))
        if any(image < 0 for image in prepared):
            raise ValueError("a bad image")
        logits = torch.tensor(np.array(prepared))[:, None]
        return MethodOutput(logits, torch.ones(len(logits), 1), torch.ones(len(logits)))


def images(*values: float) -> list[Any]:
    return [np.float64(value) for value in values]


def test_requests_that_come_while_the_network_is_busy_share_a_batch() -> None:
    model, batches = Echo(), []
    batcher = Batcher(lambda count, seconds: batches.append(count))
    model.may_run.clear()
    first = batcher.submit(model, images(0))  # type: ignore[arg-type]
    time.sleep(0.05)
    rest = [batcher.submit(model, images(number, 100 + number)) for number in range(1, 6)]  # type: ignore[arg-type]
    model.may_run.set()
    assert first.result(5).logits.tolist() == [[0]]
    assert [future.result(5).logits.flatten().tolist() for future in rest] == [[n, 100 + n] for n in range(1, 6)]
    assert model.sizes == batches == [1, 10]
    batcher.close()


def test_models_are_not_mixed_and_batches_are_bounded() -> None:
    one, other = Echo(), Echo()
    batcher = Batcher()
    one.may_run.clear()
    futures = [batcher.submit(one, images(0))]  # type: ignore[arg-type]
    time.sleep(0.05)
    futures += [batcher.submit(model, images(*range(40))) for model in (one, other, one)]  # type: ignore[arg-type]
    one.may_run.set()
    assert [len(future.result(5).logits) for future in futures] == [1, 40, 40, 40]
    assert max(one.sizes) <= MAX_BATCH
    assert other.sizes == [40]
    batcher.close()


def test_a_request_waits_only_for_others_that_are_on_their_way() -> None:
    model, batcher = Echo(), Batcher()
    start = time.monotonic()
    batcher.submit(model, images(1)).result(5)  # type: ignore[arg-type]
    alone = time.monotonic() - start
    batcher.announce(1)
    start = time.monotonic()
    batcher.submit(model, images(1)).result(5)  # type: ignore[arg-type]
    waited = time.monotonic() - start
    assert waited >= 0.004
    assert waited < 1
    assert alone < 1
    batcher.close()


def test_an_error_reaches_the_clients_of_its_batch_and_the_next_batch_works() -> None:
    model, batcher = Echo(), Batcher()
    with pytest.raises(ValueError, match="a bad image"):
        batcher.submit(model, images(-1)).result(5)  # type: ignore[arg-type]
    assert batcher.submit(model, images(3)).result(5).logits.tolist() == [[3]]  # type: ignore[arg-type]
    batcher.close()


def test_closing_finishes_what_was_submitted() -> None:
    model, batcher = Echo(), Batcher()
    model.may_run.clear()
    futures = [batcher.submit(model, images(number)) for number in range(3)]  # type: ignore[arg-type]
    threading.Timer(0.05, model.may_run.set).start()
    batcher.close()
    assert all(future.done() for future in futures)
    with pytest.raises(RuntimeError, match="closed"):
        batcher.submit(model, images(1))  # type: ignore[arg-type]


def test_canceled_requests_do_not_end_the_network() -> None:
    model, batcher = Echo(), Batcher()
    for others in (1, 0):  # a batch with a canceled request, and one that has nothing else
        model.may_run.clear()
        first = batcher.submit(model, images(0))  # type: ignore[arg-type]
        time.sleep(0.05)
        canceled = batcher.submit(model, images(1))  # type: ignore[arg-type]
        rest = [batcher.submit(model, images(2)) for _ in range(others)]  # type: ignore[arg-type]
        assert canceled.cancel()
        model.may_run.set()
        assert [future.result(5).logits.tolist() for future in (first, *rest)] == [[[0]], [[2]]][: 1 + others]
    assert batcher.submit(model, images(3)).result(5).logits.tolist() == [[3]]  # type: ignore[arg-type]
    batcher.close()
