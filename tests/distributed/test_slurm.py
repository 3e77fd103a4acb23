"""Jobs through submitit. There is no Slurm here, but submitit's local executor runs the same code in processes of this machine."""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from caprompt.distributed.jobs import Job
from caprompt.distributed.leases import hold_driver_lease
from caprompt.distributed.slurm import SlurmExecutor, parse_slurm
from caprompt.errors import InputError, OptionError

NEEDS = "the package submitit is not installed (the extra caprompt[cluster])"


class RecordingProgress:
    def __init__(self) -> None:
        self.started: list[str] = []
        self.ended: dict[str, str | None] = {}

    def on_start(self, name: str) -> None:
        self.started.append(name)

    def on_end(self, name: str, reason: str | None) -> None:
        self.ended[name] = reason


def run(executor: SlurmExecutor, jobs: list[Job], folder: Path) -> RecordingProgress:
    progress = RecordingProgress()
    with hold_driver_lease(folder / ".leases", folder) as lease:
        executor.run(jobs, folder / ".leases", lease.token, progress)
    return progress


def make_job(name: str, call: Any, *arguments: Any, done: Path | None = None) -> Job:
    """Return a job of importable functions: processes elsewhere do not know this module."""
    return Job(name, partial(call, *arguments), (done or Path("/nowhere")).is_file)


@pytest.mark.slow
def test_jobs_run_once_each_and_a_dying_one_is_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    submitit = pytest.importorskip("submitit", reason=NEEDS)
    monkeypatch.setattr(submitit.Job, "_results_timeout_s", 1)  # that a network file system has to show a result
    paths = [tmp_path / name for name in "abc"]
    paths[2].touch()
    jobs = [make_job(path.name, Path.write_text, path, f"from {path.name}", done=path) for path in paths]
    jobs.append(make_job("dying", os._exit, 9))
    progress = run(SlurmExecutor(kind="local", retries=1, limit=2), jobs, tmp_path)
    assert [path.read_text() for path in paths] == ["from a", "from b", ""]  # the last one was done before
    assert {name for name, reason in progress.ended.items() if reason is None} == {"a", "b", "c"}
    assert "its process ended too often" in str(progress.ended["dying"])
    assert sorted(progress.started) == ["a", "b", "c", "dying"]


@pytest.mark.slow
def test_what_ends_every_job_is_raised(tmp_path: Path) -> None:
    pytest.importorskip("submitit", reason=NEEDS)
    job = make_job("full", Path.write_text, Path("/dev/full"), "x")
    with pytest.raises(OSError, match="No space left on device"):
        run(SlurmExecutor(kind="local"), [job], tmp_path)


def test_without_slurm_there_is_a_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("submitit", reason=NEEDS)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(InputError, match="there is no Slurm here: the command sbatch was not found"):
        run(SlurmExecutor(), [], tmp_path)


def test_time_must_be_given_and_may_be_reached_often(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("submitit", reason=NEEDS)
    for text in ("slurm", "slurm:partition=gpu", "slurm:time=0"):
        with pytest.raises(OptionError, match=f"'{text}' does not say how many minutes a job may take; .*time=600"):
            parse_slurm(text)
    for name in ("sbatch", "srun"):  # submitit looks for them when it is set up
        (tmp_path / name).touch(0o700)
    monkeypatch.setenv("PATH", str(tmp_path))
    made = SlurmExecutor(parameters=parse_slurm("slurm:partition=gpu,time=600"))._make_executor(tmp_path / "logs")._executor
    assert made.parameters["time"] == 600
    assert made.max_num_timeout >= 1000


def test_shares_of_a_gpu_are_refused(tmp_path: Path) -> None:
    pytest.importorskip("submitit", reason=NEEDS)
    with pytest.raises(OptionError, match="Slurm gives whole CPUs and GPUs"):
        run(SlurmExecutor(kind="local", gpus=0.5), [], tmp_path)
