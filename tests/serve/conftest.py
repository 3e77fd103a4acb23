from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from serve.running import RunningServer, run_server, write_model

from caprompt.client import Client


@pytest.fixture(scope="package")
def pets_server(tmp_path_factory: pytest.TempPathFactory, backbone: Path) -> Iterator[RunningServer]:
    """Return a server of the model `pets`, which knows red and green; tests do not change it."""
    folder = tmp_path_factory.mktemp("served")
    with run_server(write_model(folder / "pets", backbone), backbone=str(backbone)) as server:
        yield server


@pytest.fixture
def pets(pets_server: RunningServer) -> Iterator[Client]:
    """Return a client of that server."""
    with pets_server.client() as client:
        yield client
