from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from helpers import ROOT
from serve.running import png, run_server, start_command, write_model

from caprompt.client import Client
from caprompt.errors import InputError
from caprompt.serve.http_server import check_packages, complete_settings, make_address, open_socket
from caprompt.serve.settings import Limits, Settings


def test_a_missing_extra_is_one_sentence(tmp_path: Path) -> None:
    """In an environment without the extra: its packages are hidden by modules that cannot be imported."""
    script = (
        "import importlib.util, sys; find = importlib.util.find_spec\n"
        "importlib.util.find_spec = lambda name, *rest: None if name in ('fastapi', 'uvicorn') else find(name, *rest)\n"
        "from caprompt.cli.app import main; main(['serve', 'pets'])"
    )
    done = subprocess.run([sys.executable, "-c", script], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr.strip() == (
        "caprompt: serving needs the package fastapi and uvicorn; install the extra: pip install 'caprompt[serve]'"
    )
    assert list(tmp_path.iterdir()) == []
    check_packages()  # here they are installed


def test_the_extra_has_what_is_checked() -> None:
    text = (ROOT / "pyproject.toml").read_text()
    line = next(line for line in text.splitlines() if line.startswith("serve = "))
    assert all(f'"{name}>=' in line for name in ("fastapi", "uvicorn", "python-multipart"))


def test_an_address_in_use_is_one_sentence() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(InputError, match=f"cannot listen at 127.0.0.1, port {port} .*; choose another port"):
            open_socket(Settings(Path("pets"), port=port))


def test_tokens_and_addresses() -> None:
    local = complete_settings(Settings(Path("pets"), backbone="x"))
    assert local.token is None
    open_one = complete_settings(Settings(Path("pets"), host="0.0.0.0", backbone="x"))
    assert open_one.token is not None
    behind_proxy = complete_settings(Settings(Path("pets"), allowed_hosts=("pets.example",), backbone="x"))
    assert behind_proxy.token is not None, "the proxy lets others reach the loopback address"
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
        assert make_address(local, listening) == f"http://127.0.0.1:{port}/"
        assert make_address(open_one, listening) == f"http://{socket.gethostname()}:{port}/?token={open_one.token}"
    with pytest.raises(InputError, match="too short to be safe"):
        complete_settings(Settings(Path("pets"), token="1234", backbone="x"))


def test_the_end_of_a_server_finishes_predictions_in_flight(tmp_path: Path, backbone: Path) -> None:
    folder = write_model(tmp_path / "pets", backbone)
    with run_server(folder) as server:
        model = server.service.collection.models["pets"].loaded
        assert model is not None
        started, may_end = threading.Event(), threading.Event()
        compute = type(model).compute_output

        def compute_slowly(self: object, prepared: object) -> object:
            started.set()
            assert may_end.wait(10)
            return compute(self, prepared)  # type: ignore[arg-type]

        answers: list[str] = []

        def ask() -> None:
            with Client(server.url) as client:
                answers.append(client.predict("pets", [png("red", 1)])[0]["label"])

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(type(model), "compute_output", compute_slowly)
            asking = threading.Thread(target=ask)
            asking.start()
            assert started.wait(10)
            server.stop()
            deadline = time.monotonic() + 10
            while not server.service.stopping.is_set():
                assert time.monotonic() < deadline
                time.sleep(0.01)
            may_end.set()
            asking.join(10)
    assert answers == ["red"]


@pytest.mark.slow
def test_sigterm_ends_the_command_with_status_0(tmp_path: Path, backbone: Path) -> None:
    folder = write_model(tmp_path / "pets", backbone)
    with start_command(folder) as (process, client):
        assert client.predict("pets", [png("red", 0)])[0]["label"] == "red"
        client.close()
        process.send_signal(signal.SIGTERM)
        assert process.wait(20) == 0
    assert [path.name for path in tmp_path.iterdir()] == ["pets"]


def test_a_connection_without_a_request_is_closed(tmp_path: Path, backbone: Path) -> None:
    limits = Limits(header_seconds=0.3)
    with run_server(write_model(tmp_path / "pets", backbone), limits=limits) as server:
        with socket.create_connection(server.address, timeout=5) as silent:
            assert silent.recv(10) == b""
        with socket.create_connection(server.address, timeout=5) as second:  # slow headers of a second request
            second.sendall(b"GET /api/v1/health HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert second.recv(10_000).startswith(b"HTTP/1.1 200")
            second.sendall(b"GET /api/v1/health HT")
            rest = b""
            while part := second.recv(10_000):
                rest += part
            assert b"HTTP/1.1" not in rest


def test_the_token_of_the_environment_is_used(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "caprompt", "serve", "pets", "--port", "0"],
        cwd=tmp_path,
        env={**os.environ, "CAPROMPT_TOKEN": "short"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert "the token is too short" in done.stderr


def test_connections_beyond_the_limit_are_closed(tmp_path: Path, backbone: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("caprompt.serve.http_server.MAX_CONNECTIONS", 2)
    request = b"GET /api/v1/health HTTP/1.1\r\nHost: localhost\r\n\r\n"
    with run_server(write_model(tmp_path / "pets", backbone)) as server:
        with (
            socket.create_connection(server.address, timeout=5),  # idle
            socket.create_connection(server.address, timeout=5) as second,
        ):
            second.sendall(request)
            assert second.recv(10_000).startswith(b"HTTP/1.1 200")
            with socket.create_connection(server.address, timeout=5) as third:
                assert third.recv(10) == b""
        deadline = time.monotonic() + 5
        while server.server.server_state.connections:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        with socket.create_connection(server.address, timeout=5) as fourth:
            fourth.sendall(request)
            assert fourth.recv(10_000).startswith(b"HTTP/1.1 200")


@pytest.mark.skipif(sys.platform == "win32", reason="has no such limit")
def test_a_server_may_open_as_many_files_as_the_system_allows() -> None:
    script = (
        "import resource; from caprompt.serve.http_server import raise_file_limit\n"
        "hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]\n"
        "resource.setrlimit(resource.RLIMIT_NOFILE, (128, hard)); raise_file_limit()\n"
        "assert resource.getrlimit(resource.RLIMIT_NOFILE) == (hard, hard)"
    )
    subprocess.run([sys.executable, "-c", script], check=True)
