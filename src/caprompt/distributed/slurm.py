"""Jobs on a Slurm cluster, through submitit: each a job of its own, in arrays. Slurm's stops for time are resumed."""

from __future__ import annotations

import shutil
import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from caprompt.distributed.jobs import RETRIES, Job, JobProgress, LeasedJob, StartReporter
from caprompt.distributed.leases import EXPIRY, HEARTBEAT
from caprompt.errors import InputError, OptionError

__all__ = ["SLURM", "SlurmExecutor", "parse_slurm"]

SLURM = "slurm"
LOGS = ".slurm"  # folder beside the leases' folder: what submitit writes
MAX_TIMEOUTS = 10_000  # stops for time after which a job is still resumed; each attempt goes on from the last checkpoint
POLL = 1.0  # seconds between two looks; submitit asks Slurm itself once in half a minute
NAMES = {"time": "timeout_min", "mem": "mem_gb"}  # of Slurm's parameters that submitit calls otherwise


@dataclass(frozen=True)
class SlurmExecutor:
    """Runs jobs on the cluster whose `sbatch` is at hand; `kind` local runs them as processes of this machine instead."""

    cpus: float = 1
    gpus: float = 0
    limit: int | None = None
    parameters: Mapping[str, str] = field(default_factory=dict)  # of sbatch, such as partition
    kind: str = SLURM
    retries: int = RETRIES
    heartbeat: float = HEARTBEAT
    expiry: float = EXPIRY

    @property
    def threads(self) -> int:
        """Number of threads that a job may use."""
        return max(1, int(self.cpus))

    def run(self, jobs: Sequence[Job], leases: Path, driver: str, progress: JobProgress) -> None:
        """Run every job; see `Executor`."""
        logs = leases.with_name(LOGS)
        executor = self._make_executor(logs)
        waiting, running, starts = deque(jobs), dict[Any, Job](), StartReporter(leases, progress)
        attempts = dict.fromkeys((job.name for job in jobs), self.retries + 1)
        try:
            while waiting or running:
                self._submit(executor, waiting, running, leases, driver)
                starts.look(job.name for job in running.values())
                for submitted in [each for each in running if each.done()]:
                    job = running.pop(submitted)
                    attempts[job.name] -= 1
                    reason = _get_reason(submitted)
                    if reason is not None and attempts[job.name]:
                        waiting.append(job)
                    else:
                        starts.end(job.name, reason)
                time.sleep(POLL if running else 0)
        finally:
            for submitted in running:  # only after Ctrl-C or a full disk
                submitted.cancel()
        shutil.rmtree(logs, ignore_errors=True)

    def _make_executor(self, logs: Path) -> Any:
        try:
            import submitit
        except ImportError:
            raise InputError("Slurm needs the package submitit: pip install 'caprompt[cluster]'") from None
        if self.kind == SLURM and shutil.which("sbatch") is None:
            raise InputError("there is no Slurm here: the command sbatch was not found; call this on a login node of the cluster")
        if self.gpus != int(self.gpus) or self.cpus != int(self.cpus):
            raise OptionError("Slurm gives whole CPUs and GPUs; for a share, ask for shards with slurm:gres=shard:1,time=600")
        executor = submitit.AutoExecutor(folder=logs, cluster=self.kind, slurm_max_num_timeout=MAX_TIMEOUTS)
        executor.update_parameters(
            name="caprompt",
            cpus_per_task=self.threads,
            **({"gpus_per_node": int(self.gpus)} if self.gpus else {}),
            **self._translate(),
        )
        return executor

    def _translate(self) -> dict[str, Any]:
        """Return the parameters under the names that submitit has for them; those it does not know are passed on to sbatch."""
        given = dict(self.parameters)
        known = {NAMES[name]: int(given.pop(name)) for name in NAMES if name in given}
        return {**known, "slurm_additional_parameters": given} if given else known

    def _submit(self, executor: Any, waiting: deque[Job], running: dict[Any, Job], leases: Path, driver: str) -> None:
        """Submit as many jobs as may run, as one array."""
        room = len(waiting) if self.limit is None else min(len(waiting), self.limit - len(running))
        if room <= 0:
            return
        batch = [waiting.popleft() for _ in range(room)]
        calls = [LeasedJob(job, leases, driver, heartbeat=self.heartbeat, expiry=self.expiry) for job in batch]
        with executor.batch():
            submitted = [executor.submit(call) for call in calls]
        running.update(zip(submitted, batch, strict=True))


def _get_reason(submitted: Any) -> str | None:
    """Return why the process of a job died; raise what would end every job."""
    from submitit.core.utils import FailedJobError, UncompletedJobError

    try:
        error: Exception | None = submitted.result()
    except (FailedJobError, UncompletedJobError) as failure:
        lines = [line for line in str(failure).strip().splitlines() if line.strip()]
        return f"its process ended too often ({lines[-1].strip() if lines else type(failure).__name__})"
    if error is not None:
        raise error
    return None


def parse_slurm(text: str) -> dict[str, str]:
    """Return the parameters in `slurm:name=value,...`; without a time, submitit would stop every job after five minutes.

    >>> parse_slurm("slurm:partition=gpu,time=600")
    {'partition': 'gpu', 'time': '600'}
    """
    _, _, rest = text.partition(":")
    parameters: dict[str, str] = {}
    for part in filter(None, rest.split(",")):
        name, equals, value = part.partition("=")
        if not equals or not name or (name in NAMES and not value.isdigit()):
            raise OptionError(f"'{part}' in '{text}' should read name=value, as in slurm:partition=gpu,time=600 (minutes)")
        parameters[name] = value
    if not int(parameters.get("time", 0)):
        raise OptionError(f"'{text}' does not say how many minutes a job may take; add them, as in slurm:partition=gpu,time=600")
    return parameters
