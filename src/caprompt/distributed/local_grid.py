"""Jobs in processes of this machine, a new one for each job."""

from __future__ import annotations

import os
import signal
import threading
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing import connection, get_context, parent_process
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from caprompt.distributed.jobs import Job, JobProgress, LeasedJob

__all__ = ["ProcessExecutor"]


@dataclass(frozen=True)
class ProcessExecutor:
    """Runs a process per job, `limit` at a time. Results are on the disk, so a process may even crash."""

    limit: int
    threads: int = 1

    def run(self, jobs: Sequence[Job], leases: Path, driver: str, progress: JobProgress) -> None:
        """Run every job; see `Executor`. The processes end with this one; leases keep out jobs that an earlier driver has left."""
        spawn = get_context("spawn")
        waiting, running = deque(jobs), dict[Any, tuple[Job, BaseProcess]]()
        try:
            while waiting or running:
                while waiting and len(running) < self.limit:
                    job = waiting.popleft()
                    started = spawn.Process(target=_run_in_child, args=(LeasedJob(job, leases, driver),), daemon=True)
                    with _defer_interrupt():
                        started.start()
                    running[started.sentinel] = (job, started)
                    progress.on_start(job.name)
                for sentinel in connection.wait(list(running)):
                    job, process = running.pop(sentinel)
                    process.join()
                    progress.on_end(job.name, f"its process ended with status {process.exitcode}" if process.exitcode else None)
        finally:
            for _, process in running.values():  # only after Ctrl-C; a job may be terminated at any moment
                process.terminate()
                process.join()


@contextmanager
def _defer_interrupt() -> Iterator[None]:
    """Defer Ctrl-C while a child process starts, in the child until it ignores the signal."""
    if threading.current_thread() is not threading.main_thread() or not hasattr(signal, "pthread_sigmask"):
        yield
        return
    received: list[bool] = []
    before = signal.signal(signal.SIGINT, lambda *_: received.append(True))
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        signal.signal(signal.SIGINT, before)
    if received:
        raise KeyboardInterrupt


def _run_in_child(job: LeasedJob) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent handles Ctrl-C
    threading.Thread(target=_exit_with_parent, daemon=True).start()
    error = job()
    if error is not None:
        raise error


def _exit_with_parent() -> None:
    """Exit when the parent is gone: a killed parent cannot stop its children, and no job may run twice at once."""
    parent = parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)
