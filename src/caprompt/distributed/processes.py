"""The processes that torchrun starts, joined to learn one model: NCCL between GPUs, gloo between CPUs.

    torchrun --nproc-per-node 4 -m caprompt learn pets photos

Each process reads the same list of images and the same model folder, which has to be on storage that all machines share. It takes
its share of every batch; gradients and sums are added up, and process 0 alone writes and prints. A process that fails or is
killed ends the call for all: torchrun stops the others, or they notice that it no longer answers. What process 0 has saved stays.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from functools import partial
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.distributed_c10d import PrefixStore, Store
from torch.distributed.rendezvous import rendezvous

from caprompt.errors import CapromptError, InputError, ProcessLostError, StoppedError
from caprompt.utils.communication import use_communicator
from caprompt.utils.devices import resolve_device

__all__ = ["TIMEOUT_SECONDS", "ProcessGroup", "is_started_by_torchrun", "join_processes"]

TIMEOUT_SECONDS = 600  # a process that does not answer for this long counts as lost
MAX_SECONDS_TO_FREE = 10  # that a thread may need on a busy machine to let go of a tensor
VARIABLES = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")  # that torchrun sets
LOST = "another process of this call has ended or does not answer"
T = TypeVar("T")


class ProcessGroup:
    """The communicator of one of several processes (`caprompt.utils.communication`)."""

    def __init__(self, store: Store, rank: int, size: int) -> None:
        self.store = store
        self.rank = rank
        self.size = size

    def add_up(self, tensor: Tensor) -> None:
        """Replace a tensor by its sum over all processes."""
        self._exchange(tensor, dist.all_reduce)

    def copy_from_first(self, tensor: Tensor) -> None:
        """Replace a tensor by that of process 0."""
        self._exchange(tensor, partial(dist.broadcast, src=0))

    def gather(self, value: Any) -> list[Any]:
        """Return the values of all processes, which travel as JSON: nothing that another process sends is executed."""
        own = json.dumps(value).encode()
        sizes = torch.zeros(self.size, dtype=torch.long)
        sizes[self.rank] = len(own)
        self.add_up(sizes)
        texts = torch.zeros(self.size, int(sizes.max()), dtype=torch.uint8)
        texts[self.rank, : len(own)] = torch.frombuffer(bytearray(own), dtype=torch.uint8)
        self.add_up(texts)
        return [json.loads(bytes(text[:size].tolist())) for text, size in zip(texts, sizes.tolist(), strict=True)]

    def wait(self) -> None:
        """Wait until all processes have come this far."""
        self.add_up(torch.zeros(1))

    def claim(self, name: str) -> bool:
        """Return whether this process is the first to claim this; if nobody can be asked, whether it is process 0."""
        try:
            return bool(self.store.add(f"claim {name}", 1) == 1)
        except RuntimeError:
            return self.rank == 0

    def _exchange(self, tensor: Tensor, operation: Callable[[Tensor], object]) -> None:
        dense = tensor.detach().contiguous()
        _run(partial(operation, dense))
        if dense.data_ptr() != tensor.data_ptr():
            tensor.detach().copy_(dense)
        if dense.device.type == "cpu":
            exchanged = weakref.ref(dense)
            del dense
            _wait_until_freed(exchanged)


def is_started_by_torchrun() -> bool:
    """Return whether this process is one of those that torchrun or a like launcher started."""
    return all(name in os.environ for name in VARIABLES)


@contextmanager
def join_processes(device: str) -> Iterator[str]:
    """Join the other processes of this call, and yield the device of this one: the given one, or with several GPUs its own.

    A process that was not started with others goes on alone. Of several that fail for the same reason, one says so.
    """
    if not is_started_by_torchrun():
        yield device
        return
    rank, own_device = _read_number("RANK"), _choose_device(device, _read_number("LOCAL_RANK"))
    backend = "cpu:gloo,cuda:nccl" if resolve_device(own_device).type == "cuda" else "gloo"
    timeout = timedelta(seconds=TIMEOUT_SECONDS)
    store, rank, size = _run(lambda: next(rendezvous("env://", timeout=timeout)))
    _run(lambda: dist.init_process_group(backend, store=store, rank=rank, world_size=size, timeout=timeout))
    group = ProcessGroup(PrefixStore("caprompt", store), rank, size)
    before = signal.signal(signal.SIGTERM, _stop)
    try:
        with use_communicator(group):
            yield own_device
            group.wait()  # process 0 may still be writing
        dist.destroy_process_group()
    except (CapromptError, OSError, KeyboardInterrupt) as error:
        # The group is left as it is: to end it in order, the others would have to answer.
        if group.claim("report"):
            raise
        status = StoppedError.exit_code if isinstance(error, KeyboardInterrupt) else InputError.exit_code
        sys.exit(getattr(error, "exit_code", status))
    finally:
        signal.signal(signal.SIGTERM, before)


def _choose_device(device: str, local_rank: int) -> str:
    """Return the device of a process by its number on its machine."""
    if device not in ("auto", "cuda") or not torch.cuda.is_available():
        return device
    count = torch.cuda.device_count()
    if local_rank >= count:
        raise InputError(
            f"there are {count} GPU(s) here, but torchrun started process {local_rank + 1} of this machine; "
            f"let torchrun start {count} on each machine, or use the CPU"
        )
    torch.cuda.set_device(local_rank)
    return f"cuda:{local_rank}"


def _read_number(name: str) -> int:
    try:
        return int(os.environ[name])
    except ValueError:
        raise InputError(f"the environment variable {name} is '{os.environ[name]}', not a number; start with torchrun") from None


def _run(operation: Callable[[], T]) -> T:
    """Call a function that exchanges something; a process that does not answer becomes a sentence."""
    try:
        return operation()
    except RuntimeError as error:  # gloo and NCCL raise it, or subclasses
        raise ProcessLostError(LOST) from error


def _wait_until_freed(tensor: weakref.ref[Tensor]) -> None:
    """Wait until the thread of gloo that exchanged a tensor has let go of it, which takes the interpreter lock.

    A thread that asks for the lock while the interpreter ends aborts the process; one that asks for it while the destructor of
    the group waits for the thread, as torch 2.4 does without giving up the lock, waits forever.
    """
    deadline = time.monotonic() + MAX_SECONDS_TO_FREE
    while tensor() is not None and time.monotonic() < deadline:
        time.sleep(0.0002)


def _stop(number: int, frame: object) -> None:
    """End the call on SIGTERM, which torchrun sends when another process has failed."""
    raise ProcessLostError(LOST)
