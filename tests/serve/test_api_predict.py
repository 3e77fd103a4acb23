from __future__ import annotations

import io
import json
import struct
import zlib
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers import square
from PIL import Image
from serve.running import RunningServer, encode, png, pngs, run_server, write_model

from caprompt import ContinualClassifier
from caprompt.client import Client, ServerError


def post(server: RunningServer, path: str, body: Any, kind: str = "image/png") -> tuple[int, dict[str, Any]]:
    connection = HTTPConnection(*server.address, timeout=30)
    connection.request("POST", f"/api/v1/models/pets/{path}", body, {"Content-Type": kind})
    response = connection.getresponse()
    answer = json.loads(response.read())
    connection.close()
    return response.status, answer


def test_predictions_are_those_of_the_library(pets_server: RunningServer, pets: Client) -> None:
    images = [square(color, seed) for seed in (70, 71) for color in ("red", "green", "blue")]
    model = ContinualClassifier.load(pets_server.service.collection.models["pets"].folder, device="cpu")
    expected = model.predict([Image.fromarray(image) for image in images], top=2)
    for got, own in zip(pets.predict("pets", [encode(image) for image in images], top=2), expected, strict=True):
        assert (got["label"], got["unknown"]) == (own.label, own.unknown)
        assert got["score"] == pytest.approx(own.score, rel=1e-4)
        assert [each["label"] for each in got["top"]] == [each.label for each in own.top]
        assert got["task_weights"] == pytest.approx(own.task_weights, abs=1e-5)


def test_predictions_of_many_clients_are_gathered_and_equal_to_those_alone(pets_server: RunningServer, pets: Client) -> None:
    images = [png(color, seed) for seed in range(80, 96) for color in ("red", "green")]
    alone = [pets.predict("pets", [image])[0] for image in images]
    batches = pets_server.service.metrics.batch_images.total

    def ask(image: bytes) -> dict[str, Any]:
        with pets_server.client() as client:
            return client.predict("pets", [image])[0]

    with ThreadPoolExecutor(16) as threads:
        together = list(threads.map(ask, images))
    assert [each["label"] for each in together] == [each["label"] for each in alone]
    assert [each["score"] for each in together] == pytest.approx([each["score"] for each in alone], rel=1e-4)
    assert pets_server.service.metrics.batch_images.total - batches < len(images), "no two requests shared a batch"


def test_a_raw_body_is_one_image(pets_server: RunningServer) -> None:
    status, answer = post(pets_server, "predict?top=1", png("red", 60))
    assert status == 200
    assert [each["label"] for each in answer["predictions"][0]["top"]] == ["red"]
    assert answer["milliseconds"] > 0


def test_an_unreadable_image_of_a_form_has_its_error_beside_the_predictions(pets: Client) -> None:
    good, bad = pets.predict("pets", [png("green", 60), b"no image"])
    assert good["label"] == "green"
    assert "not a readable image" in bad["error"]
    assert "label" not in bad


def make_bomb(width: int, height: int) -> bytes:
    """Return a PNG file of a few bytes that states a size, with pixels for its first lines only."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(bytes(width + 1) * 2)) + chunk(b"IEND", b"")


def cut_jpeg() -> bytes:
    content = io.BytesIO()
    Image.fromarray(square("red", 0, 200)).save(content, "JPEG")
    return content.getvalue()[:300]


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (b"", "empty"),
        (b"GIF89a broken", "not a readable image"),
        (b"%!PS-Adobe-3.0 EPSF-3.0\n", "no known image format"),
        (cut_jpeg(), "not a readable image"),
        (make_bomb(30_000, 30_000), "possible decompression bomb"),
        (make_bomb(8_000, 8_000), "at most 40 million are allowed"),
        (encode(np.zeros((1, 100_000), np.uint8)), "1 pixels: one side is over 200 times the other"),
        (encode(np.zeros((100_000, 1), np.uint8)), "one side is over 200 times the other"),
    ],
    ids=["empty", "broken", "eps", "cut", "bomb", "large", "wide", "tall"],
)
def test_images_that_cannot_be_used_are_refused_with_a_sentence(
    pets_server: RunningServer, pets: Client, content: bytes, sentence: str
) -> None:
    status, answer = post(pets_server, "predict", content)
    assert status == 422
    assert sentence in answer["error"]
    assert "skip_bad" not in answer["error"]
    assert pets.predict("pets", [png("red", 0)])[0]["label"] == "red"


def test_other_bodies_and_values_are_refused(pets_server: RunningServer, pets: Client) -> None:
    assert post(pets_server, "predict", b"{}", "application/json")[0] == 415
    assert post(pets_server, "predict?top=0", png("red", 0))[0] == 422
    assert post(pets_server, "predict?coverage=2", png("red", 0))[0] == 422
    assert post(pets_server, "predict", b"--x--\r\n", "multipart/form-data; boundary=x")[0] in (400, 422)  # empty, or no form
    assert post(pets_server, "predict", b"rubbish", "multipart/form-data")[0] == 400
    assert post(pets_server, "predict", b"rubbish", "multipart/form-data; boundary=x")[0] in (400, 422)


def test_limits_of_images_and_requests_are_refusals(tmp_path: Path, backbone: Path) -> None:
    from caprompt.serve.settings import Limits

    limits = Limits(images=3, pixels=500, in_flight=0)
    with run_server(write_model(tmp_path / "pets", backbone), limits=limits) as server, server.client() as client:
        client._connection.request("POST", "/api/v1/models/pets/predict", png("red", 0), {"Content-Type": "image/png"})
        response = client._connection.getresponse()
        assert (response.status, response.headers["Retry-After"]) == (503, "1")
        client.close()
        object.__setattr__(limits, "in_flight", 1)
        assert client.predict("pets", pngs("red", 3))[0]["label"] == "red"
        with pytest.raises(ServerError, match="3 images at most") as caught:
            client.predict("pets", pngs("red", 4))
        assert caught.value.status == 413
        assert "at most 0.0005 million" in client.predict("pets", [encode(square("red", 0, 30))])[0]["error"]


def test_a_coverage_gives_the_classes_that_hold_the_true_one(tmp_path: Path, backbone: Path) -> None:
    folder = write_model(tmp_path / "pets", backbone)
    with run_server(folder) as server, server.client() as client:
        is_calibrated = client.model("pets")["coverage"]
        if is_calibrated:
            assert client.predict("pets", [png("red", 9)], coverage=0.9)[0]["labels"][0] == "red"
        else:
            with pytest.raises(ServerError, match="not calibrated") as caught:
                client.predict("pets", [png("red", 9)], coverage=0.9)
            assert caught.value.status == 409


def test_a_model_without_classes_predicts_nothing(tmp_path: Path, backbone: Path) -> None:
    with run_server(tmp_path / "new", backbone=str(backbone)) as server, server.client() as client:
        with pytest.raises(ServerError, match="has not learned any class yet; teach it first") as caught:
            client.predict("new", [png("red", 0)])
        assert caught.value.status == 409
