from __future__ import annotations

import os
import shutil
import time
from pathlib import Path

import pytest
from helpers import caprompt, squares
from serve.running import RunningServer, png, pngs, run_server, write_model

from caprompt import ContinualClassifier
from caprompt.classifier import editing
from caprompt.errors import InputError, ModelFolderError
from caprompt.serve.jobs import JobStore
from caprompt.serve.state_folder import find_state_folder


def test_a_second_server_of_a_model_is_refused(pets_server: RunningServer) -> None:
    folder = pets_server.service.collection.models["pets"].folder
    done = caprompt("serve", folder, "--port", "0", "--no-open")
    assert done.returncode == 2
    assert len(done.stderr.strip().splitlines()) == 1
    assert f"is served already by process {os.getpid()}" in done.stderr
    with pytest.raises(InputError, match="is served already"), run_server(folder.parent, many=True):
        pass


def test_the_lock_ends_with_the_server(tmp_path: Path, backbone: Path) -> None:
    write_model(tmp_path / "pets", backbone)
    for _ in range(2):
        with run_server(tmp_path / "pets") as server, server.client() as client:
            assert client.health()["models"] == 1
    assert [path.name for path in tmp_path.iterdir()] == ["pets"]


def test_a_model_that_was_taught_elsewhere_is_taken_in(tmp_path: Path, backbone: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("caprompt.serve.service.RELOAD_INTERVAL", 0.05)
    folder = write_model(tmp_path / "pets", backbone)
    with run_server(tmp_path, many=True, reload_models=True) as server, server.client() as client:
        assert client.predict("pets", [png("blue", 70)])[0]["label"] != "blue"
        model = ContinualClassifier.load(folder)
        model.learn(squares(["blue"], each=8), checkpoint_dir=folder)
        wait_until(lambda: len(client.classes("pets")) == 3)
        assert client.predict("pets", [png("blue", 70)])[0]["label"] == "blue"
        editing.undo(folder)
        wait_until(lambda: len(client.classes("pets")) == 2)
        write_model(tmp_path / "birds", backbone)
        wait_until(lambda: len(client.models()) == 2)


def test_without_that_option_the_model_stays(tmp_path: Path, backbone: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("caprompt.serve.service.RELOAD_INTERVAL", 0.05)
    folder = write_model(tmp_path / "pets", backbone)
    with run_server(folder) as server, server.client() as client:
        editing.rename(folder, "red", "rot")
        time.sleep(0.3)
        assert {each["name"] for each in client.classes("pets")} == {"red", "green"}


def test_a_damaged_model_is_refused_at_the_start(tmp_path: Path, backbone: Path) -> None:
    folder = write_model(tmp_path / "pets", backbone)
    (folder / "state.safetensors").write_bytes(b"damaged")
    with pytest.raises(ModelFolderError, match="does not match its hash"), run_server(folder):
        pass


def test_a_folder_of_models_is_served_without_those_that_cannot_be(
    tmp_path: Path, backbone: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("caprompt.serve.service.RELOAD_INTERVAL", 0.05)
    folder = write_model(tmp_path / "pets", backbone)
    for name in ("aux", "birds"):
        shutil.copytree(folder, tmp_path / name)
    (tmp_path / "birds" / "state.safetensors").write_bytes(b"damaged")
    with run_server(tmp_path, many=True, reload_models=True) as server, server.client() as client:
        assert [each["name"] for each in client.models()] == ["pets"]
        time.sleep(0.3)
        assert [record.getMessage().partition(":")[0] for record in caplog.records] == [
            f"'{tmp_path / name}' is not served" for name in ("aux", "birds")
        ]
        shutil.copy(folder / "state.safetensors", tmp_path / "birds")
        wait_until(lambda: len(client.models()) == 2)


@pytest.mark.parametrize("left", [[], [".lock"]])
def test_a_model_whose_first_lesson_was_interrupted_is_served(tmp_path: Path, backbone: Path, left: list[str]) -> None:
    if left:  # by a process that was killed
        (tmp_path / "fish").mkdir()
        (tmp_path / "fish" / ".lock").write_bytes(b"")
    job = JobStore(find_state_folder(tmp_path / "fish") / "jobs").create(
        "learn", {"calls": 0, "identity": None, "upload": "0" * 16}
    )
    with run_server(tmp_path, many=True, backbone=str(backbone)) as server, server.client() as client:
        assert [(each["name"], each["job"]) for each in client.models()] == [("fish", job.id)]
        assert client.undo("fish")["classes"] == 0
        assert client.jobs("fish")[0]["state"] == "canceled"
        upload, _ = client.upload("fish", {"red": pngs("red", 1)})
    with run_server(tmp_path, many=True, backbone=str(backbone)) as server, server.client() as client:
        client._ask("DELETE", f"/models/fish/uploads/{upload}")
    with run_server(tmp_path, many=True, backbone=str(backbone)) as server, server.client() as client:
        assert client.models() == []
        assert client.create("fish")["name"] == "fish"


def test_a_folder_of_photos_is_not_served_as_a_model(tmp_path: Path) -> None:
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "cat.jpg").write_bytes(b"")
    with pytest.raises(ModelFolderError, match=r"holds other files, such as 'cat.jpg'"), run_server(tmp_path / "photos"):
        pass
    assert [path.name for path in tmp_path.iterdir()] == ["photos"]


def wait_until(condition: object, seconds: float = 10) -> None:
    assert callable(condition)
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)
