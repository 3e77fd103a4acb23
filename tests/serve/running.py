"""Servers for tests: in a thread of this process, or as the command in a process of its own."""

from __future__ import annotations

import asyncio
import io
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from helpers import QUICK, square, squares
from PIL import Image

from caprompt import ContinualClassifier
from caprompt.client import Client
from caprompt.serve.app import make_app
from caprompt.serve.http_server import complete_settings, make_address, make_server, open_socket
from caprompt.serve.service import Service
from caprompt.serve.settings import Settings


@dataclass
class RunningServer:
    url: str
    service: Service
    server: Any  # uvicorn's

    def stop(self) -> None:
        """Ask the server to end, as SIGTERM does."""
        self.server.should_exit = True

    def client(self) -> Client:
        return Client(self.url, token=self.service.settings.token)

    @property
    def address(self) -> tuple[str, int]:
        host, _, port = self.url.removeprefix("http://").rstrip("/").rpartition(":")
        return host, int(port)


@contextmanager
def run_server(folder: Path, **settings: Any) -> Iterator[RunningServer]:
    """Serve a folder at a free port, until the end of the context."""
    complete = complete_settings(Settings(folder, port=0, **{"options": QUICK, "device": "cpu", **settings}))
    ready = threading.Event()
    state: dict[str, Any] = {}

    async def serve() -> None:
        service = Service(complete)
        try:
            with open_socket(complete) as listening:
                service.collection.open()
                state["service"] = service
                state["server"] = make_server(make_app(service), service)
                state["url"] = make_address(complete, listening).partition("?")[0]
                ready.set()
                await state["server"].serve(sockets=[listening])
        except BaseException as error:
            state["error"] = error
        finally:
            service.close()
            ready.set()

    thread = threading.Thread(target=lambda: asyncio.run(serve()))
    thread.start()
    try:
        assert ready.wait(30)
        if "error" in state:
            raise state["error"]
        yield RunningServer(state["url"], state["service"], state["server"])
    finally:
        if "server" in state:
            state["server"].should_exit = True
        thread.join()


@contextmanager
def start_command(*arguments: object) -> Iterator[tuple[subprocess.Popen[str], Client]]:
    """Run `caprompt serve` in a process of its own, and return it with a client once it serves."""
    words = [sys.executable, "-m", "caprompt", "serve", *map(str, arguments), "--port", "0", "--no-open", "--device", "cpu"]
    process = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        found = re.search(r"http://\S+?/", line)
        assert found, line
        with Client(found[0]) as client:
            yield process, client
    finally:
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()


def encode(image: Any, kind: str = "PNG") -> bytes:
    content = io.BytesIO()
    Image.fromarray(image).save(content, kind)
    return content.getvalue()


def png(color: str, seed: int) -> bytes:
    return encode(square(color, seed))


def pngs(color: str, count: int, start: int = 0) -> list[bytes]:
    return [png(color, start + number) for number in range(count)]


def write_model(folder: Path, backbone: Path, colors: tuple[str, ...] = ("red", "green"), **options: Any) -> Path:
    """Write a model that knows some colors."""
    model = ContinualClassifier(backbone=backbone, device="cpu", **{**QUICK, **options})
    model.learn(squares(colors, each=8))
    model.save(folder)
    return folder
