"""Running the application with uvicorn: the address, slow clients, and an end that loses nothing."""

from __future__ import annotations

import asyncio
import secrets
import socket
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from importlib.util import find_spec
from typing import Any

from caprompt.errors import InputError
from caprompt.serve.settings import Settings, is_loopback

__all__ = ["check_packages", "complete_settings", "make_address", "make_server", "open_socket", "raise_file_limit", "run"]

PACKAGES = {"fastapi": "fastapi", "uvicorn": "uvicorn", "python_multipart": "python-multipart"}
MAX_CONNECTIONS = 900  # below the 1024 files that a process may commonly have open
GRACE_SECONDS = 30  # for requests in flight at the end


def check_packages() -> None:
    """Raise if a package of the extra is not installed."""
    missing = [name for module, name in PACKAGES.items() if find_spec(module) is None]
    if missing:
        raise InputError(f"serving needs the package {' and '.join(missing)}; install the extra: pip install 'caprompt[serve]'")


def complete_settings(settings: Settings) -> Settings:
    """Return settings with a token where the address needs one, and the backbone of new models."""
    if settings.token is not None and len(settings.token) < 8:
        raise InputError("the token is too short to be safe; give one of 8 characters or more")
    if settings.token is None and (settings.allowed_hosts or not is_loopback(settings.host)):  # with another name, for a proxy
        settings = replace(settings, token=secrets.token_urlsafe(24))
    if settings.backbone is None:
        from caprompt.backbones.recommendation import find_present, recommend
        from caprompt.utils.devices import resolve_device

        choice = recommend(find_present(), gpu=resolve_device(settings.device).type != "cpu")
        settings = replace(settings, backbone=choice.name)
    return settings


def open_socket(settings: Settings) -> socket.socket:
    """Return a socket that listens at the address; raise if that is not possible."""
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    try:
        return socket.create_server((settings.host, settings.port), family=family, backlog=512)
    except (OSError, OverflowError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise InputError(f"cannot listen at {settings.host}, port {settings.port} ({reason}); choose another port") from error


def make_address(settings: Settings, listening: socket.socket) -> str:
    """Return the address to open in a browser, with the token if there is one."""
    port = listening.getsockname()[1]
    host = {"0.0.0.0": socket.gethostname(), "::": socket.gethostname()}.get(settings.host, settings.host)
    base = f"http://[{host}]:{port}/" if ":" in host else f"http://{host}:{port}/"
    return base if settings.token is None else f"{base}?token={settings.token}"


def run(settings: Settings, announce: Callable[[str], None]) -> None:
    """Serve until SIGTERM or Ctrl-C; `announce` is called with the address once the models are open.

    The settings are complete (`complete_settings`).
    """
    raise_file_limit()
    with open_socket(settings) as listening:
        asyncio.run(_serve(settings, listening, announce))


def raise_file_limit() -> None:
    """Let this process have as many files and connections open as the system allows it to."""
    if sys.platform != "win32":
        import resource

        hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        with suppress(OSError, ValueError):  # macOS allows fewer than it says
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


async def _serve(settings: Settings, listening: socket.socket, announce: Callable[[str], None]) -> None:
    from caprompt.serve.app import make_app
    from caprompt.serve.service import Service

    service = Service(settings)
    try:
        service.collection.open()
        server = make_server(make_app(service), service)
        announce(make_address(settings, listening))
        await server.serve(sockets=[listening])
    finally:
        service.close()


def make_server(app: Any, service: Any) -> Any:
    """Return a uvicorn server that ends jobs first when it is told to end, so that those who watch them are answered."""
    import uvicorn

    class Server(uvicorn.Server):
        @contextmanager
        def capture_signals(self) -> Iterator[None]:
            with super().capture_signals():
                yield
                self._captured_signals.clear()  # they would be raised again, and end this process before it has closed all

        async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
            await service.stop()
            await super().shutdown(sockets)

    config = uvicorn.Config(
        app,
        http=_make_protocol(service.settings.limits.header_seconds),
        ws="none",
        lifespan="on",
        log_level="warning",
        access_log=False,
        server_header=False,
        timeout_keep_alive=30,
        timeout_graceful_shutdown=GRACE_SECONDS,
    )
    return Server(config)


def _make_protocol(header_seconds: float) -> Any:
    """Return uvicorn's protocol with limits on connections and on the time that a client takes to send the headers of a request."""
    from uvicorn.protocols.http.h11_impl import H11Protocol

    class BoundedProtocol(H11Protocol):
        header_timer: asyncio.TimerHandle | None = None

        def connection_made(self, transport: Any) -> None:
            if len(self.connections) >= MAX_CONNECTIONS:  # also idle ones, which are not requests yet
                self.transport = transport
                transport.close()
                return
            super().connection_made(transport)
            self._watch_headers()

        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            self._watch_headers()

        def connection_lost(self, error: Exception | None) -> None:
            self._stop_watching()
            super().connection_lost(error)

        def _watch_headers(self) -> None:
            """Start the timer where headers are awaited, and stop it where a request has come."""
            if self.cycle is not None and not self.cycle.response_complete:
                self._stop_watching()
            elif self.header_timer is None:
                self.header_timer = self.loop.call_later(header_seconds, self._give_up)

        def _stop_watching(self) -> None:
            if self.header_timer is not None:
                self.header_timer.cancel()
                self.header_timer = None

        def _give_up(self) -> None:
            self.header_timer = None
            if (self.cycle is None or self.cycle.response_complete) and not self.transport.is_closing():
                self.transport.close()

    return BoundedProtocol
