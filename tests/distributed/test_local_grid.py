from __future__ import annotations

import os
import shutil
import signal
from functools import partial
from pathlib import Path

import pytest

from caprompt.distributed import local_grid
from caprompt.distributed.jobs import Job
from caprompt.distributed.leases import hold_driver_lease


class RecordingProgress:
    def __init__(self) -> None:
        self.ended: dict[str, str | None] = {}

    def on_start(self, name: str) -> None:
        pass

    def on_end(self, name: str, reason: str | None) -> None:
        self.ended[name] = reason


def test_jobs_hold_their_leases_and_finished_ones_are_not_run(tmp_path: Path) -> None:
    leases, copy, progress = tmp_path / ".leases", tmp_path / "copy", RecordingProgress()
    jobs = [
        Job("cell", partial(shutil.copytree, leases / "cell", copy / "cell"), copy.is_dir),  # type: ignore[arg-type]
        Job("done", partial(os._exit, 9), tmp_path.is_dir),
    ]
    with hold_driver_lease(leases, tmp_path) as lease:
        local_grid.ProcessExecutor(2).run(jobs, leases, lease.token, progress)
    assert progress.ended == {"cell": None, "done": None}
    assert (copy / "cell" / "1").is_file()
    assert not leases.exists()


def test_ctrl_c_is_deferred_while_a_process_starts() -> None:
    steps = []
    with pytest.raises(KeyboardInterrupt):  # noqa: PT012
        with local_grid._defer_interrupt():
            os.kill(os.getpid(), signal.SIGINT)
            steps.append("started")
        steps.append("never")
    assert steps == ["started"]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    with local_grid._defer_interrupt():
        steps.append("undisturbed")
    assert steps[-1] == "undisturbed"
