from __future__ import annotations

import asyncio
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from helpers import read_tree, squares
from serve.running import RunningServer, pngs, run_server, write_model
from serve.test_served_models import wait_until

from caprompt import ContinualClassifier, checkpoint
from caprompt.classifier import editing
from caprompt.client import Client, ServerError
from caprompt.serve.jobs import Job, JobStore
from caprompt.serve.service import Service
from caprompt.serve.settings import Settings
from caprompt.serve.state_folder import find_state_folder
from caprompt.serve.uploads import UploadStore


@pytest.fixture
def folder(tmp_path: Path, backbone: Path) -> Path:
    return write_model(tmp_path / "pets", backbone)


@pytest.fixture
def server(folder: Path, backbone: Path) -> Iterator[RunningServer]:
    with run_server(folder, backbone=str(backbone)) as server:
        yield server


@pytest.fixture
def client(server: RunningServer) -> Iterator[Client]:
    with server.client() as client:
        yield client


def learn_elsewhere(folder: Path, each: int = 8) -> None:
    """Teach blue, as `caprompt learn` does in a terminal."""
    ContinualClassifier.load(folder).learn(squares(["blue"], each=each), checkpoint_dir=folder)


def write_interrupted_job(folder: Path) -> Job:
    """Write what a server that was killed in a lesson of blue leaves, before its first checkpoint."""
    state = find_state_folder(folder)
    upload = UploadStore(state / "uploads").create()
    for number, content in enumerate(pngs("blue", 8)):
        upload.add("blue", f"{number}.png", content, lambda _: None, lambda *_: False)
    images = {"upload": upload.identifier, "upload_folder": str(upload.folder), "hold_out": 0}
    request = {"calls": 1, "identity": checkpoint.read_identity(folder), "folder": str(folder), **images}
    return JobStore(state / "jobs").create("learn", request)


def test_canceling_a_lesson_does_not_undo_what_was_taught_elsewhere(client: Client, folder: Path) -> None:
    learn_elsewhere(folder)
    before = read_tree(folder)
    upload, _ = client.upload("pets", {"cyan": pngs("blue", 6, start=50)})
    client.cancel("pets", client.start("pets", "learn", upload=upload)["id"])
    assert read_tree(folder) == before
    assert {each["name"] for each in client.classes("pets")} == {"red", "green", "blue"}


def test_canceling_an_export_does_not_discard_a_stopped_lesson(client: Client, folder: Path) -> None:
    shutil.copytree(folder, folder.with_name("stopped"))
    folder.with_name("stopped").rename(folder / "in-progress")
    client.cancel("pets", client.start("pets", "export")["id"])
    assert checkpoint.exists(folder / "in-progress")


def test_canceling_an_interrupted_job_undoes_its_lesson(folder: Path) -> None:
    before = read_tree(folder)
    job = write_interrupted_job(folder)
    learn_elsewhere(folder)  # as the job did before it was interrupted in its evaluation
    with run_server(folder) as server, server.client() as client:
        assert len(client.classes("pets")) == 3
        assert client.cancel("pets", job.id)["state"] == "canceled"
        assert read_tree(folder) == before
        assert len(client.classes("pets")) == 2


def test_canceling_an_interrupted_job_keeps_a_lesson_that_is_not_its_own(folder: Path) -> None:
    job = write_interrupted_job(folder)
    learn_elsewhere(folder, each=6)
    with run_server(folder) as server, server.client() as client:
        assert client.cancel("pets", job.id)["state"] == "canceled"
        assert len(client.classes("pets")) == 3


def test_undo_of_an_interrupted_job_without_a_checkpoint_keeps_the_lesson_before(folder: Path) -> None:
    before = read_tree(folder)
    write_interrupted_job(folder)
    with run_server(folder) as server, server.client() as client:
        assert client.undo("pets")["classes"] == 2
        assert [each["state"] for each in client.jobs("pets")] == ["canceled"]
        assert read_tree(folder) == before
        assert client.undo("pets")["classes"] == 0, "the next undo is of the lesson"


def test_an_upload_of_a_job_does_not_change(server: RunningServer, client: Client) -> None:
    identifier, _ = client.upload("pets", {"blue": pngs("blue", 6)})
    upload = server.service.uploads(server.service.collection.models["pets"]).get(identifier)
    upload.freeze()  # by a job that starts while images are being sent
    path = f"/models/pets/uploads/{identifier}/images?label=blue"
    for method in ("POST", "DELETE"):
        with pytest.raises(ServerError, match="being taught") as caught:
            client._ask(method, path, pngs("blue", 1, start=50)[0], "image/png")
        assert caught.value.status == 409
    upload.frozen = False
    job = client.start("pets", "learn", upload=identifier)["id"]
    assert upload.frozen
    client.cancel("pets", job)
    assert not upload.frozen
    assert client._ask("DELETE", path)["classes"] == []


def test_a_failed_job_still_takes_in_the_model(folder: Path) -> None:
    async def fail() -> tuple[Job, list[str]]:
        service = Service(Settings(folder, device="cpu"))
        try:
            service.collection.open()
            model = service.collection.models["pets"]
            job = service.jobs(model).create("evaluate", {})
            editing.rename(folder, "red", "rot")
            await service._finish(model, job, {"error": "it broke"})
            return job, model.require_loaded().classifier.classes
        finally:
            service.close()

    job, classes = asyncio.run(fail())
    assert (job.state, job.error) == ("failed", "it broke")
    assert "rot" in classes


def test_the_background_goes_on_after_an_error(folder: Path, backbone: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("caprompt.serve.service.RELOAD_INTERVAL", 0.05)
    monkeypatch.setattr("caprompt.serve.service.CLEAN_INTERVAL", 0.05)
    failures: list[str] = []

    def fail_once(original: Any) -> Any:
        def call(*arguments: Any) -> Any:
            if original.__name__ not in failures:
                failures.append(original.__name__)
                raise OSError("the disk is away")
            cleaned.append(original.__name__)
            return original(*arguments)

        return call

    cleaned: list[str] = []
    with monkeypatch.context() as patch:
        for name in ("served_models.ModelCollection.find_new", "uploads.UploadStore.remove_expired"):
            module, owner, function = name.split(".")
            found = getattr(__import__(f"caprompt.serve.{module}", fromlist=[owner]), owner)
            patch.setattr(found, function, fail_once(getattr(found, function)))
        with run_server(folder.parent, many=True, reload_models=True) as server, server.client() as client:
            write_model(folder.with_name("birds"), backbone)
            wait_until(lambda: len(client.models()) == 2)
            wait_until(lambda: "remove_expired" in cleaned)
    assert sorted(failures) == ["find_new", "remove_expired"]


def test_exports_end_with_the_version_that_they_are_of(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("caprompt.serve.service.RELOAD_INTERVAL", 0.05)
    with run_server(folder, reload_models=True) as server, server.client() as client:
        export = server.service.collection.models["pets"].state / "exports" / "pets.onnx"
        export.parent.mkdir()
        export.write_bytes(b"of the old version")
        editing.rename(folder, "red", "rot")
        wait_until(lambda: not export.exists())
        assert "rot" in {each["name"] for each in client.classes("pets")}


def test_a_forgotten_class_is_in_no_upload_and_no_result(folder: Path) -> None:
    store = JobStore(find_state_folder(folder) / "jobs")
    for name in ("red", "green"):
        job = store.create("learn", {})
        job.update(state="done", result={"classes_added": [name], "images": 8, "held_out": None})
        store.save(job)
    with run_server(folder) as server, server.client() as client:
        upload, _ = client.upload("pets", {"red": pngs("red", 2, start=50), "green": pngs("green", 1, start=50)})
        client.forget("pets", "red", approximate=True)
        assert client._ask("GET", f"/models/pets/uploads/{upload}")["classes"] == [{"name": "green", "images": 1, "known": True}]
        state = server.service.collection.models["pets"].state
        assert not any(b'"red"' in content for content in read_tree(state).values())
        assert [job["result"] and job["result"]["classes_added"] for job in client.jobs("pets")] == [None, ["green"]]
