"""Jobs on a Ray cluster, each a task. Ray runs the tasks of a machine that died on others; leases keep them from running twice."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from caprompt.distributed.jobs import RETRIES, Job, JobProgress, LeasedJob, StartReporter
from caprompt.distributed.leases import EXPIRY, HEARTBEAT
from caprompt.distributed.ray_cluster import check_resources, choose_gpus, connect, count_threads
from caprompt.errors import first_line

__all__ = ["RayExecutor"]

POLL = 0.5  # seconds between two looks at what has started
STOP = 10.0  # seconds that running tasks have to let go of their leases after Ctrl-C


@dataclass(frozen=True)
class RayExecutor:
    """Runs jobs on the Ray cluster at an address, as many at once as it has room for, or at most `limit`."""

    address: str
    cpus: float = 1
    gpus: float | None = None  # such as 0.25 for four jobs at once on each GPU; None is one where the cluster has any
    limit: int | None = None
    retries: int = RETRIES
    heartbeat: float = HEARTBEAT
    expiry: float = EXPIRY

    @property
    def threads(self) -> int:
        """Number of threads that a job may use."""
        return count_threads(self.cpus)

    def run(self, jobs: Sequence[Job], leases: Path, driver: str, progress: JobProgress) -> None:
        """Run every job; see `Executor`."""
        with connect(self.address) as ray:
            gpus = choose_gpus(ray, self.gpus)
            check_resources(ray, self.cpus, gpus)
            task, needs = ray.remote(_call), {"num_cpus": self.cpus, "num_gpus": gpus, "max_retries": self.retries}
            waiting, running, starts = deque(jobs), dict[Any, Job](), StartReporter(leases, progress)
            try:
                while waiting or running:
                    while waiting and (self.limit is None or len(running) < self.limit):
                        job = waiting.popleft()
                        call = LeasedJob(job, leases, driver, heartbeat=self.heartbeat, expiry=self.expiry)
                        running[task.options(name=job.name, **needs).remote(call)] = job
                    ended, _ = ray.wait(list(running), num_returns=1, timeout=POLL)
                    starts.look(job.name for job in running.values())
                    for reference in ended:
                        starts.end(running.pop(reference).name, _get_reason(ray, reference))
            finally:
                _cancel(ray, list(running))  # only after Ctrl-C or a full disk


def _call(job: LeasedJob) -> Exception | None:
    return job()


def _get_reason(ray: Any, reference: Any) -> str | None:
    """Return why the processes of a task died; raise what would end every task."""
    try:
        error: Exception | None = ray.get(reference)
    except ray.exceptions.RayTaskError as failure:
        cause = failure.cause
        return f"{type(cause).__name__}: {first_line(cause)}" if isinstance(cause, Exception) else first_line(failure)
    except ray.exceptions.RayError as failure:  # the worker or its machine died, too often
        return f"its process ended too often ({type(failure).__name__})"
    if error is not None:
        raise error
    return None


def _cancel(ray: Any, references: list[Any]) -> None:
    for reference in references:
        ray.cancel(reference)
    if references:
        ray.wait(references, num_returns=len(references), timeout=STOP)
