from __future__ import annotations

import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from helpers import read_tree
from serve.running import RunningServer, png, run_server, write_model

from caprompt import ContinualClassifier, checkpoint
from caprompt.client import Client, ServerError


@pytest.fixture
def server(tmp_path: Path, backbone: Path) -> Iterator[RunningServer]:
    with run_server(write_model(tmp_path / "pets", backbone), backbone=str(backbone)) as server:
        yield server


@pytest.fixture
def client(server: RunningServer) -> Iterator[Client]:
    with server.client() as client:
        yield client


def test_a_model_is_listed_and_described(pets: Client) -> None:
    assert pets.health() == {"status": "ok", "version": pets.health()["version"], "models": 1, "can_create": False}
    (listed,) = pets.models()
    details = pets.model("pets")
    assert (listed["name"], listed["classes"], listed["images"], listed["lessons"], listed["busy"]) == ("pets", 2, 16, 1, False)
    assert (details["can_undo"], details["can_learn"], details["image_size"]) == (True, True, 16)
    assert details["lessons"][0]["what"] == "learn"
    assert sorted(details["lessons"][0]["classes"]) == ["green", "red"]
    assert details["bytes"] == sum(part["bytes"] for part in details["parts"])
    assert any("hash of every image" in sentence for sentence in details["keeps"])
    assert details["limits"]["images"] == 100
    entry = pets.classes("pets")[0]
    assert (entry["images"], entry["lesson"], entry["thumbnail"]) == (8, 0, None)
    assert entry["learned"].startswith("20")
    with pytest.raises(ServerError, match="there is no model 'cats' here") as caught:
        pets.model("cats")
    assert caught.value.status == 404


def test_edits_are_those_of_the_library(server: RunningServer, client: Client) -> None:
    folder = server.service.collection.models["pets"].folder
    before = read_tree(folder)
    client.rename("pets", "red", "rot")
    assert client.predict("pets", [png("red", 70)])[0]["label"] == "rot"
    assert ContinualClassifier.load(folder).classes == [each["name"] for each in client.classes("pets")]
    client.undo("pets")
    assert read_tree(folder) == before
    assert client.join("pets", ["red", "green"], "both")["classes"] == 1
    client.undo("pets")
    assert read_tree(folder) == before
    for refused, sentence in (
        (lambda: client.rename("pets", "blue", "x"), "'blue' has not been learned"),
        (lambda: client.rename("pets", "red", "a/b"), "cannot be a class name"),
        (lambda: client.join("pets", ["red"], "x"), "two different classes"),
        (lambda: client.forget("pets", "red"), "cannot be forgotten exactly"),
    ):
        with pytest.raises(ServerError, match=sentence) as caught:
            refused()
        assert caught.value.status == 409
        assert str(folder) not in str(caught.value)
    assert read_tree(folder) == before
    assert client.forget("pets", "red", approximate=True)["classes"] == 1
    assert client.predict("pets", [png("red", 70)])[0]["label"] == "green"
    with pytest.raises(ServerError, match="forgetting a class cannot be undone"):
        client.undo("pets")


def test_the_first_lesson_can_be_undone(server: RunningServer, client: Client) -> None:
    details = client.undo("pets")
    assert (details["classes"], details["can_undo"], details["lessons"]) == (0, False, [])
    assert client.classes("pets") == []
    with pytest.raises(ServerError, match="does not hold a caprompt model"):
        client.undo("pets")


def test_a_download_is_the_model(client: Client, tmp_path: Path, backbone: Path) -> None:
    file = client.download("pets", tmp_path / "pets.zip")
    with zipfile.ZipFile(file) as archive:
        archive.extractall(tmp_path / "copy")
    assert sorted(ContinualClassifier.load(tmp_path / "copy" / "pets", backbone=backbone).classes) == ["green", "red"]


def test_a_download_and_writers_do_not_wait_for_each_other(
    server: RunningServer, client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("caprompt.client.RETRIES", 0)
    model = server.service.collection.models["pets"]
    with checkpoint.lock_folder(model.folder):
        assert zipfile.is_zipfile(client.download("pets", tmp_path / "pets.zip"))
    assert [path.name for path in model.state.iterdir()] == [".lock"]
    server.service.in_flight = server.service.settings.limits.in_flight
    with pytest.raises(ServerError, match="which is the limit") as caught:
        client.download("pets", tmp_path / "again.zip")
    assert caught.value.status == 503
    server.service.in_flight = 0
    client.download("pets", tmp_path / "again.zip")
    assert server.service.in_flight == 0


def test_models_of_a_folder_and_new_ones(tmp_path: Path, backbone: Path) -> None:
    write_model(tmp_path / "pets", backbone)
    write_model(tmp_path / "my birds", backbone)
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "cat.jpg").write_bytes(b"")
    with run_server(tmp_path, many=True, backbone=str(backbone)) as server, server.client() as client:
        assert [each["name"] for each in client.models()] == ["my-birds", "pets"]
        assert client.create("fish")["classes"] == 0
        assert client.model("fish")["can_undo"] is False
        for name, status in (
            ("fish", 409),
            ("FISH", 409),
            ("pets", 409),
            ("photos", 409),
            ("../x", 422),
            ("a/b", 422),
            ("con", 422),
        ):
            with pytest.raises(ServerError) as caught:
                client.create(name)
            assert caught.value.status == status, name
        assert not (tmp_path / "fish").exists()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["my birds", "pets", "photos"]


def test_a_server_of_one_model_makes_no_others(pets: Client) -> None:
    with pytest.raises(ServerError, match="caprompt serve --models FOLDER") as caught:
        pets.create("fish")
    assert caught.value.status == 409


def test_pictures_exist_only_if_they_are_kept(pets: Client) -> None:
    with pytest.raises(ServerError, match="no picture") as caught:
        pets._ask("GET", "/models/pets/thumbnail?name=red")
    assert caught.value.status == 404
