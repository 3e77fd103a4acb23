"""A command that several processes run together, started by torchrun: the first of them prints."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

from caprompt.cli.console import err, out

__all__ = ["is_first_process", "join_processes"]


def is_first_process() -> bool:
    """Return whether this process is the first, or the only one, that was started to run a command."""
    return "WORLD_SIZE" not in os.environ or os.environ.get("RANK", "0") == "0"


@contextmanager
def join_processes(device: str) -> Iterator[str]:
    """Join the processes that torchrun started, if it did, and yield the device of this one; only the first one prints."""
    if "WORLD_SIZE" not in os.environ:
        yield device
        return
    from caprompt.distributed import processes

    with processes.join_processes(device) as own_device:
        out.quiet = err.quiet = not is_first_process()
        try:
            yield own_device
        finally:
            out.quiet = err.quiet = False
