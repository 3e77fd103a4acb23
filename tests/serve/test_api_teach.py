from __future__ import annotations

import json
import time
from collections.abc import Iterator
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import pytest
from helpers import read_tree
from serve.running import RunningServer, png, pngs, run_server, write_model

from caprompt import checkpoint
from caprompt.client import Client, ServerError
from caprompt.serve.settings import Limits

SLOW = {"epochs": 100, "batch_size": 4}  # with `MANY` images, a lesson that does not end before it is canceled
MANY = 300


@pytest.fixture
def server(tmp_path: Path, backbone: Path) -> Iterator[RunningServer]:
    with run_server(write_model(tmp_path / "pets", backbone), backbone=str(backbone), keep_thumbnails=True) as server:
        yield server


@pytest.fixture
def client(server: RunningServer) -> Iterator[Client]:
    with server.client() as client:
        yield client


def test_an_upload_says_what_is_wrong_before_teaching(client: Client) -> None:
    upload, problems = client.upload("pets", {"blue": [png("blue", 1), png("blue", 1), b"junk"], "cyan": [png("blue", 1)]})
    assert [each["problem"].partition(" (")[0] for each in problems[:1]] == ["the same image is in this upload already"]
    assert "not a readable image" in problems[1]["problem"]
    assert "as 'blue'" in problems[2]["problem"]
    state = client._ask("GET", f"/models/pets/uploads/{upload}")
    assert state["classes"] == [{"name": "blue", "images": 1, "known": False}]
    assert any("only 1 image; 5 or more are better" in warning for warning in state["warnings"])
    assert len(state["problems"]) == 3
    assert client._ask("DELETE", f"/models/pets/uploads/{upload}/images?label=blue")["classes"] == []
    client._ask("DELETE", f"/models/pets/uploads/{upload}")
    with pytest.raises(ServerError, match="no such upload") as caught:
        client._ask("GET", f"/models/pets/uploads/{upload}")
    assert caught.value.status == 404


@pytest.mark.parametrize("label", ["../x", "a/b", "con", "", " ", "a\0b", "x" * 256])
def test_names_that_no_class_can_have_are_refused(pets: Client, label: str) -> None:
    with pytest.raises(ServerError) as caught:
        pets.upload("pets", {label: [png("red", 0)]})
    assert caught.value.status == 422


@pytest.mark.slow
def test_a_lesson_with_events_and_held_out_images(server: RunningServer, client: Client) -> None:
    events: list[dict[str, Any]] = []
    upload, problems = client.upload("pets", {"blue": pngs("blue", 10), "red": [*pngs("red", 4, start=40), *pngs("red", 1)]})
    assert problems == []
    job = client.start("pets", "learn", upload=upload, hold_out=0.2)
    assert job["state"] in ("queued", "running")
    for kind, refused in (("learn", "is running"), ("export", "is running")):
        with pytest.raises(ServerError, match=refused) as caught:
            client.start("pets", kind, upload=upload)
        assert caught.value.status == 409
    with pytest.raises(ServerError, match="a job of 'pets' is running"):
        client.rename("pets", "red", "rot")
    with pytest.raises(ServerError, match="being taught"):
        client._ask("DELETE", f"/models/pets/uploads/{upload}")
    assert client.predict("pets", [png("green", 70)])[0]["label"] == "green", "predictions go on from the old model"
    assert {each["name"] for each in client.classes("pets")} == {"red", "green"}

    connection = HTTPConnection(*server.address, timeout=60)
    connection.request("GET", f"/api/v1/models/pets/jobs/{job['id']}/events")
    response = connection.getresponse()
    assert response.headers.get_content_type() == "text/event-stream"
    names = []
    for line in response.read().decode().splitlines():
        if line.startswith("event: "):
            names.append(line.removeprefix("event: "))
        elif line.startswith("data: "):
            events.append(json.loads(line.removeprefix("data: ")))
    connection.close()
    assert set(names[:-1]) == {"progress"}
    assert names[-1] == "end"
    assert [each["progress"] for each in events] == sorted(each["progress"] for each in events)
    end = events[-1]
    assert (end["state"], end["error"]) == ("done", None)
    assert end["result"]["classes_added"] == ["blue"]
    held_out = end["result"]["held_out"]
    assert held_out["images"] == 3  # two of blue, one of red
    assert {each["name"]: each["images"] for each in held_out["classes"]} == {"blue": 2, "red": 1}
    assert end["result"]["images"] == 12
    assert client.predict("pets", [png("blue", 77)])[0]["label"] == "blue"
    entries = {each["name"]: each for each in client.classes("pets")}
    assert entries["blue"]["images"] == 8
    thumbnail = client._request("GET", entries["blue"]["thumbnail"].removeprefix("/api/v1"))
    assert thumbnail[8:12] == b"WEBP"
    assert client.models()[0]["job"] is None
    with pytest.raises(ServerError, match="no such upload"):  # images are not kept
        client._ask("GET", f"/models/pets/uploads/{upload}")
    # The first image of blue was learned or held out, so a second upload of all of them has problems with those learned.
    _, repeated = client.upload("pets", {"blue": pngs("blue", 10)})
    assert [each["problem"] for each in repeated] == ["this image was learned before as 'blue'"] * 8


@pytest.mark.slow
def test_a_canceled_lesson_leaves_the_model_as_it_was(tmp_path: Path, backbone: Path) -> None:
    folder = write_model(tmp_path / "pets", backbone, **SLOW)
    before = read_tree(folder)
    with run_server(folder, backbone=str(backbone), limits=Limits(jobs=1)) as server, server.client() as client:
        upload, _ = client.upload("pets", {"blue": pngs("blue", MANY)})
        job = client.start("pets", "learn", upload=upload)["id"]
        while not checkpoint.exists(folder / "in-progress"):
            time.sleep(0.05)
            assert client._ask("GET", f"/models/pets/jobs/{job}")["state"] in ("queued", "running")
        assert client.cancel("pets", job)["state"] == "canceled"
        assert read_tree(folder) == before
        with pytest.raises(ServerError, match="canceled and cannot be canceled"):
            client.cancel("pets", job)
        with pytest.raises(ServerError, match="only an interrupted one"):
            client.resume("pets", job)
        assert client._ask("GET", f"/models/pets/uploads/{upload}")["classes"][0]["images"] == MANY


def test_a_job_is_canceled_before_its_process_runs(client: Client, server: RunningServer) -> None:
    before = read_tree(server.service.collection.models["pets"].folder)
    upload, _ = client.upload("pets", {"blue": pngs("blue", 8)})
    start = time.monotonic()
    assert client.cancel("pets", client.start("pets", "learn", upload=upload)["id"])["state"] == "canceled"
    assert time.monotonic() - start < 3, "the job was canceled only when it had ended"
    assert read_tree(server.service.collection.models["pets"].folder) == before


@pytest.mark.slow
def test_the_number_of_jobs_is_limited(tmp_path: Path, backbone: Path) -> None:
    for name in ("a", "b"):
        write_model(tmp_path / name, backbone, **SLOW)
    with run_server(tmp_path, many=True, limits=Limits(jobs=1)) as server, server.client() as client:
        jobs = {name: client.upload(name, {"blue": pngs("blue", MANY)})[0] for name in ("a", "b")}
        first = client.start("a", "learn", upload=jobs["a"])["id"]
        with pytest.raises(ServerError, match="1 jobs are running, which is the limit") as caught:
            client.start("b", "learn", upload=jobs["b"])
        assert caught.value.status == 429
        client.cancel("a", first)
        client.cancel("b", client.start("b", "learn", upload=jobs["b"])["id"])


@pytest.mark.slow
def test_evaluation_and_export(client: Client, tmp_path: Path) -> None:
    result = client.evaluate("pets", {"red": pngs("red", 3, start=50), "green": pngs("red", 2, start=60), "new": pngs("blue", 1)})
    assert result["images"] == 5
    assert result["accuracy"] == pytest.approx(60.0)
    assert result["confusions"][0]["true"] == "green"
    assert sorted(result["confusions"][0]["files"]) == ["image-0", "image-1"]
    assert result["unlearned"] == {"new": 1}
    pytest.importorskip("onnxruntime")
    with pytest.raises(ServerError, match="no export") as caught:
        client.download("pets", tmp_path / "x.zip", format="onnx")
    assert caught.value.status == 404
    assert client.export("pets")["bytes"] > 1000
    assert client.download("pets", tmp_path / "x.zip", format="onnx").stat().st_size > 1000
    client.rename("pets", "red", "rot")
    with pytest.raises(ServerError, match="no export of this version"):
        client.download("pets", tmp_path / "x.zip", format="onnx")


def test_jobs_need_images_and_a_model(pets: Client) -> None:
    for settings, sentence in (
        ({"kind": "learn"}, "needs an upload"),
        ({"kind": "learn", "upload": "0" * 16}, "no such upload"),
        ({"kind": "learn", "upload": "../../etc"}, "no such upload"),
        ({"kind": "sleep"}, "kind is invalid"),
        ({"kind": "learn", "hold_out": 2}, "hold_out is invalid"),
        ({"kind": "learn", "more": 1}, "more is invalid"),
    ):
        with pytest.raises(ServerError, match=sentence) as caught:
            pets.start("pets", **settings)  # type: ignore[arg-type]
        assert caught.value.status in (404, 422)
    upload, _ = pets.upload("pets", {})
    with pytest.raises(ServerError, match="no images yet"):
        pets.start("pets", "learn", upload=upload)
    with pytest.raises(ServerError, match="no such job"):
        pets.cancel("pets", "0" * 16)
