from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from serve.running import png, pngs, start_command, write_model

from caprompt import ContinualClassifier, checkpoint
from caprompt.client import Client, ServerError
from caprompt.errors import ModelFolderError
from caprompt.serve.jobs import Job, JobStore, run_worker


def wait_for_checkpoint(folder: Path, client: Client, job: str) -> None:
    while not checkpoint.exists(folder / "in-progress"):
        time.sleep(0.02)
        assert client._ask("GET", f"/models/pets/jobs/{job}")["state"] in ("queued", "running")


def end(process: subprocess.Popen[str], how: signal.Signals) -> int:
    process.send_signal(how)
    return process.wait(30)


@pytest.mark.slow
def test_a_job_survives_the_end_and_the_death_of_its_server(tmp_path: Path, backbone: Path) -> None:
    folder = write_model(tmp_path / "pets", backbone, epochs=60)
    identity = checkpoint.read_identity(folder)
    with start_command(folder) as (process, client):
        upload, _ = client.upload("pets", {"blue": pngs("blue", 60)})
        job = client.start("pets", "learn", upload=upload)["id"]
        wait_for_checkpoint(folder, client, job)
        with pytest.raises(ServerError, match="running"):
            client.undo("pets")
        client.close()
        assert end(process, signal.SIGTERM) == 0
    for how in (signal.SIGKILL, None):
        assert checkpoint.read_identity(folder) == identity
        with start_command(folder) as (process, client):
            assert [each["state"] for each in client.jobs("pets")] == ["interrupted"]
            assert client.models()[0]["job"] == job
            assert client.predict("pets", [png("red", 70)])[0]["label"] == "red"
            with pytest.raises(ServerError, match="was interrupted; resume it") as caught:
                client.start("pets", "learn", upload=upload)
            assert caught.value.status == 409
            if how is not None:  # so that a checkpoint shows that the resumed job has come as far
                checkpoint.discard(folder / "in-progress")
            client.resume("pets", job)
            if how is not None:
                wait_for_checkpoint(folder, client, job)
                end(process, how)
                wait_for_lock(folder)
            else:
                result = client.wait("pets", job)["result"]
                assert result["classes_added"] == ["blue"]
                assert client.predict("pets", [png("blue", 99)])[0]["label"] == "blue"
    assert len(ContinualClassifier.load(folder).lessons) == 2


def wait_for_lock(folder: Path) -> None:
    """Wait until the process of a job has followed its server."""
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        try:
            with checkpoint.lock_folder(folder):
                return
        except ModelFolderError:
            time.sleep(0.05)
    raise AssertionError("the process of the job has outlived its server")


@pytest.mark.slow
def test_an_interrupted_job_can_be_canceled_or_undone(tmp_path: Path, backbone: Path) -> None:
    folder = write_model(tmp_path / "pets", backbone, epochs=60)
    with start_command(folder) as (process, client):
        upload, _ = client.upload("pets", {"blue": pngs("blue", 60)})
        job = client.start("pets", "learn", upload=upload)["id"]
        wait_for_checkpoint(folder, client, job)
        end(process, signal.SIGKILL)
        wait_for_lock(folder)
    with start_command(folder) as (process, client):
        client.undo("pets")
        assert [each["state"] for each in client.jobs("pets")] == ["canceled"]
        assert client.model("pets")["classes"] == 2
        assert client.models()[0]["job"] is None
    assert not (folder / "in-progress").exists()


def test_records_are_read_again_and_unfinished_ones_are_interrupted(tmp_path: Path) -> None:
    store = JobStore(tmp_path)
    first, second = (store.create("learn", {"upload": str(number)}) for number in range(2))
    first.update(state="done", result={"images": 3})
    store.save(first)
    second.update(state="running", progress=0.5)
    store.save(second)
    (tmp_path / "0123456789abcdef.json").write_text("{")
    again = JobStore(tmp_path)
    assert {job.id: job.state for job in again.jobs.values()} == {first.id: "done", second.id: "interrupted"}
    assert again.jobs[first.id].result == {"images": 3}
    found = again.find_open()
    assert found is not None
    assert found.id == second.id
    assert JobStore(tmp_path).jobs[second.id].state == "interrupted"


def test_old_records_are_deleted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("caprompt.serve.jobs.MAX_RECORDS", 2)
    store = JobStore(tmp_path)
    for _ in range(4):
        store.create("learn", {}).update(state="done")
    store.create("learn", {})
    assert len(store.jobs) == 3
    assert len(list(tmp_path.glob("*.json"))) == 3


def test_the_time_left_follows_from_the_progress() -> None:
    job = Job("1", "learn", {}, state="running")
    assert job.describe()["seconds_left"] is None
    job.update(progress=0.05)
    assert job.first is not None
    job.first = job.first[0] - 10, job.first[1]
    job.update(progress=0.55)
    left: Any = job.describe()["seconds_left"]
    assert left == pytest.approx(9, abs=0.5)


@pytest.mark.skipif(sys.platform == "win32", reason="needs a shell script")
def test_a_process_whose_messages_cannot_be_read_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = tmp_path / "python"
    script.write_text("#!/bin/sh\necho this is not JSON\nexec sleep 60\n")
    script.chmod(0o755)
    monkeypatch.setattr("caprompt.serve.jobs.sys.executable", str(script))
    store = JobStore(tmp_path / "jobs")
    job = store.create("learn", {})

    async def never(job: Job, last: object) -> None:
        raise AssertionError

    with pytest.raises(json.JSONDecodeError):
        asyncio.run(run_worker(job, store.path(job), 1, never))
    assert job.process is not None
    assert job.process.returncode == -signal.SIGKILL
    assert [path.name for path in store.folder.iterdir()] == [f"{job.id}.json"]
