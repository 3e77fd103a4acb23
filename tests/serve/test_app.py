from __future__ import annotations

import hashlib
import json
import re
from http.client import HTTPConnection
from importlib.metadata import version

import pytest
from helpers import ROOT
from serve.running import RunningServer, png

from caprompt.client import Client
from caprompt.serve.app import make_schema

SCHEMA = ROOT / "docs" / "openapi.json"


def test_the_schema_is_committed_and_the_changelog_knows_it() -> None:
    """A change to the interface has to be announced: write the schema with tools/openapi.py, and its digest to the changelog."""
    pinned = re.findall(r"^fastapi==([\d.]+)", (ROOT / "constraints.txt").read_text(encoding="utf-8"), flags=re.MULTILINE)
    if version("fastapi") not in pinned:
        pytest.skip(f"the schema is compared as FastAPI {' or '.join(pinned)} writes it")
    assert json.loads(SCHEMA.read_text(encoding="utf-8")) == make_schema(), "run: python tools/openapi.py"
    digest = hashlib.sha256(SCHEMA.read_bytes()).hexdigest()[:16]
    assert f"`{digest}`" in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), (
        f"docs/openapi.json has changed: say in CHANGELOG.md what has, and replace the digest of the schema by `{digest}`"
    )


def test_the_schema_lists_every_route_and_its_refusals() -> None:
    paths = make_schema()["paths"]
    assert len(paths) >= 19
    for path, methods in paths.items():
        for method, operation in methods.items():
            assert operation.get("description"), (method, path)
            if path.startswith("/api/v1/models/{model}"):
                assert {"401", "403", "404", "422"} <= operation["responses"].keys(), (method, path)


def test_the_server_sends_the_same_schema(pets: Client) -> None:
    assert pets._ask("GET", "/openapi.json") == make_schema()


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [("GET", "/nowhere", 404), ("GET", "/docs", 404), ("POST", "/api/v1/health", 405), ("GET", "/api/v1/models/pets/x", 404)],
)
def test_unknown_addresses_are_answered_with_a_sentence(pets_server: RunningServer, method: str, path: str, status: int) -> None:
    connection = HTTPConnection(*pets_server.address)
    connection.request(method, path)
    response = connection.getresponse()
    assert response.status == status
    assert list(json.loads(response.read())) == ["error"]
    connection.close()


def test_metrics_count_requests_batches_and_images(pets_server: RunningServer, pets: Client) -> None:
    def read() -> dict[str, float]:
        connection = HTTPConnection(*pets_server.address)
        connection.request("GET", "/metrics")
        response = connection.getresponse()
        assert response.headers["Content-Type"].startswith("text/plain; version=0.0.4")
        lines = response.read().decode().splitlines()
        connection.close()
        return {line.rpartition(" ")[0]: float(line.rpartition(" ")[2]) for line in lines if not line.startswith("#")}

    before = read()
    pets.predict("pets", [png("red", 0), png("green", 0)])
    after = read()
    changed = {name: after[name] - before.get(name, 0) for name in after if after[name] != before.get(name, 0)}
    assert changed["caprompt_batch_images_sum"] == 2
    assert sum(value for name, value in changed.items() if name.startswith("caprompt_images_total")) == 2
    assert any('status="200"' in name and "predict" in name for name in changed)
    assert after["process_resident_memory_bytes"] > 1e7
    assert after["caprompt_models"] == 1
