"""Jobs: lessons, evaluations and exports, each in a process of its own, so that predictions go on meanwhile.

The record of a job is a file, `jobs/<id>.json`. A server that starts finds the jobs of one that ended or was killed, and calls
them `interrupted`: they can be resumed. The states are queued, running, done, failed, canceled and interrupted.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import secrets
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from caprompt.errors import InputError
from caprompt.utils.files import read_json, write_json

__all__ = ["ENDED", "Job", "JobStore", "run_worker"]

ENDED = frozenset({"done", "failed", "canceled"})
MAX_RECORDS = 50  # of jobs of one model that have ended
REQUEST_SUFFIX = ".request"  # of the file that a worker reads
IDENTIFIER = re.compile(r"[0-9a-f]{16}")
MIN_ESTIMATED = 0.1  # progress from which the time left is estimated
MAX_LINE = 1 << 24  # bytes of a message of a worker: the result of an evaluation lists file names


@dataclass
class Job:
    """A job of one model."""

    id: str
    kind: str
    request: Mapping[str, Any]  # for the worker
    state: str = "queued"
    progress: float = 0.0
    stage: str = ""
    seconds: float = 0.0
    error: str | None = None
    result: dict[str, Any] | None = None
    created: float = field(default_factory=time.time)

    def __post_init__(self) -> None:
        self.changed = asyncio.Event()  # set and replaced at every change
        self.process: asyncio.subprocess.Process | None = None
        self.task: asyncio.Task[None] | None = None
        self.is_killed = False
        self.started: float | None = None  # on the monotonic clock
        self.first: tuple[float, float] | None = None  # time and progress of the first report of a share done

    @property
    def is_active(self) -> bool:
        """Whether it waits for its process, or runs."""
        return self.state in ("queued", "running")

    def describe(self) -> dict[str, Any]:
        """Return what clients see of it."""
        seconds = self.seconds if self.started is None else time.monotonic() - self.started
        return {
            "id": self.id,
            "kind": self.kind,
            "state": self.state,
            "progress": self.progress,
            "stage": self.stage,
            "seconds": round(seconds, 1),
            "seconds_left": self._estimate_left(),
            "error": self.error,
            "result": self.result,
        }

    def _estimate_left(self) -> float | None:
        if not self.is_active or self.first is None or self.progress < MIN_ESTIMATED:
            return None
        since, start = self.first
        if self.progress <= start:
            return None
        return round((time.monotonic() - since) / (self.progress - start) * (1 - self.progress), 1)

    def update(self, **values: Any) -> None:
        """Change the job, and wake those who watch it."""
        for name, value in values.items():
            setattr(self, name, value)
        if self.first is None and self.progress > 0:
            self.first = time.monotonic(), self.progress
        if not self.is_active and self.started is not None:
            self.seconds, self.started = time.monotonic() - self.started, None
        self.changed.set()
        self.changed = asyncio.Event()

    def kill(self) -> None:
        """End the process at once, also one that has not started yet; the model is left as it was, or as it should be."""
        self.is_killed = True
        if self.process is not None and self.process.returncode is None:
            with suppress(ProcessLookupError):
                self.process.kill()

    async def watch(self) -> AsyncIterator[Job]:
        """Yield the job at once and after every change, until it has ended; and every few seconds in between."""
        while True:
            changed = self.changed
            yield self
            if not self.is_active:
                return
            with suppress(asyncio.TimeoutError):
                await asyncio.wait_for(changed.wait(), timeout=10)


class JobStore:
    """The jobs of one model, newest last, and their files."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.jobs: dict[str, Job] = {}
        for path in folder.glob(f"*{REQUEST_SUFFIX}"):  # of a server that was killed
            path.unlink()
        for path in folder.glob("*.json"):
            if IDENTIFIER.fullmatch(path.stem):
                with suppress(InputError, TypeError):
                    job = Job(**read_json(path))
                    self.jobs[job.id] = job
        self.jobs = dict(sorted(self.jobs.items(), key=lambda item: item[1].created))
        for job in self.jobs.values():
            if job.is_active:
                job.state = "interrupted"
                self.save(job)

    def create(self, kind: str, request: Mapping[str, Any]) -> Job:
        """Return a new job; its record is on disk before its process starts."""
        job = Job(secrets.token_hex(8), kind, request)
        self.jobs[job.id] = job
        self.save(job)
        ended = [other for other in self.jobs.values() if other.state in ENDED]
        for other in ended[: max(0, len(ended) - MAX_RECORDS)]:
            del self.jobs[other.id]
            self.path(other).unlink(missing_ok=True)
        return job

    def path(self, job: Job) -> Path:
        """Return the record of a job."""
        return self.folder / f"{job.id}.json"

    def save(self, job: Job) -> None:
        """Write the record of a job."""
        write_json(self.path(job), asdict(job))

    def find_open(self) -> Job | None:
        """Return the job that runs or was interrupted, if there is one."""
        return next((job for job in self.jobs.values() if job.state not in ENDED), None)


async def run_worker(job: Job, record: Path, threads: int, finish: Callable[[Job, Mapping[str, Any]], Awaitable[None]]) -> None:
    """Run the process of a job to its end, and call `finish` with its last message: a result, an error, or nothing."""
    environment = {**os.environ, "OMP_NUM_THREADS": str(threads), "MKL_NUM_THREADS": str(threads)}
    request = record.with_suffix(REQUEST_SUFFIX)
    content = json.dumps({**job.request, "kind": job.kind})
    try:
        await asyncio.to_thread(request.write_text, content, encoding="utf-8")
        job.process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "caprompt.serve.worker",
            str(request),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            env=environment,
            limit=MAX_LINE,
            start_new_session=True,  # Ctrl-C in the terminal is for the server, which then ends its jobs
        )
        last = await _follow(job, job.process)
    finally:
        if job.process is not None and job.process.returncode is None:  # its messages could not be read
            with suppress(ProcessLookupError):
                job.process.kill()
            await job.process.wait()
        await asyncio.to_thread(request.unlink, missing_ok=True)
    await finish(job, last)


async def _follow(job: Job, process: asyncio.subprocess.Process) -> Mapping[str, Any]:
    """Take in the progress that a process reports until it ends, and return its last message."""
    if job.is_killed:  # meanwhile
        job.kill()
    job.update(state="running", started=time.monotonic())
    last: Mapping[str, Any] = {}
    assert process.stdout is not None
    async for line in process.stdout:
        message = json.loads(line)
        if "progress" in message:
            job.update(progress=message["progress"], stage=message["stage"])
        else:
            last = message
    await process.wait()
    return last
