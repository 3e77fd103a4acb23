"""Jobs that an executor runs somewhere on a cluster, each by one process at a time (`leases`).

A job is a picklable function that resumes what an earlier attempt has left, and another that says whether it is done. Executors
(`ray_grid`, `slurm`) run them in any order, on machines that see the same storage under the same path.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from caprompt.distributed.leases import EXPIRY, HEARTBEAT, Lease, sees_driver
from caprompt.errors import CapromptError, InputError

__all__ = ["RETRIES", "Executor", "Job", "JobProgress", "LeasedJob", "StartReporter"]

RETRIES = 3  # further attempts at a job whose process or machine died


@dataclass(frozen=True)
class Job:
    """Something to run once; `run` records what goes wrong with the job itself."""

    name: str
    run: Callable[[], None]
    is_done: Callable[[], bool]


class JobProgress(Protocol):
    """Callbacks with the names of jobs."""

    def on_start(self, name: str) -> None:
        """Called when a job starts."""

    def on_end(self, name: str, reason: str | None) -> None:
        """Called when a job has ended; a reason says why its process died too often."""


class Executor(Protocol):
    """Where and how jobs are run."""

    @property
    def threads(self) -> int:
        """Number of threads that a job may use."""

    def run(self, jobs: Sequence[Job], leases: Path, driver: str, progress: JobProgress) -> None:
        """Run every job, for the driver with this token; `leases` is the folder of its lease and those of the jobs."""


@dataclass(frozen=True)
class LeasedJob:
    """A job as a process of the cluster runs it. What would end every job, such as a full disk, is returned, not raised."""

    job: Job
    leases: Path
    driver: str
    directory: Path = field(default_factory=Path.cwd)  # of the driver: paths may be relative to it
    heartbeat: float = HEARTBEAT
    expiry: float = EXPIRY

    def __call__(self) -> Exception | None:
        """Run the job while holding its lease, unless someone else has finished it."""
        if not sees_driver(self.leases, self.driver, self.expiry):
            return InputError(
                f"'{self.leases.parent}' is not on storage that {socket.gethostname()} shares; choose another out=..."
            )
        with suppress(OSError):
            os.chdir(self.directory)
        try:
            lease = Lease(self.leases / self.job.name, heartbeat=self.heartbeat, expiry=self.expiry)
            lease.acquire()
            try:
                if not self.job.is_done():
                    self.job.run()
            finally:
                lease.release()
        except (CapromptError, OSError) as error:
            return error
        return None

    def checkpoint(self) -> Any:
        """Return what Slurm shall run again after it has stopped this job for lack of time, or for another user's."""
        from submitit.helpers import DelayedSubmission

        return DelayedSubmission(self)


class StartReporter:
    """Reports the start of jobs, which shows in their leases, whatever runs them."""

    def __init__(self, leases: Path, progress: JobProgress) -> None:
        self.leases, self.progress = leases, progress
        self._started: set[str] = set()

    def look(self, running: Iterable[str]) -> None:
        """Report those of the running jobs that have started since the last look."""
        with suppress(FileNotFoundError):
            leased = {path.name for path in self.leases.iterdir()}
            for name in running:
                if name in leased:
                    self._report(name)

    def end(self, name: str, reason: str | None) -> None:
        """Report the end of a job, and its start where it was too short to be seen."""
        self._report(name)
        self.progress.on_end(name, reason)

    def _report(self, name: str) -> None:
        if name not in self._started:
            self._started.add(name)
            self.progress.on_start(name)
