"""Checks before any route, as plain ASGI middleware: who asks, from where, how much and how slowly.

A server on the loopback address can still be reached by web pages, through the browser: by another name that resolves to it (DNS
rebinding), or by requests to it from a foreign page. Hence the checks of Host and Origin. Any other address needs a token.
"""

from __future__ import annotations

import asyncio
import secrets
import socket
import time
from collections.abc import Awaitable, Callable, Iterable
from http.cookies import CookieError, SimpleCookie
from ipaddress import ip_address
from urllib.parse import parse_qs, urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import HTMLResponse, JSONResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from caprompt.serve.metrics import ServerMetrics
from caprompt.serve.page import SIGN_IN
from caprompt.serve.problems import Problem
from caprompt.serve.settings import Limits, Settings

__all__ = ["COOKIE", "BodyGuard", "OriginGuard", "RequestLog", "TokenGuard", "split_host"]

COOKIE = "caprompt_token"
BODY_RATE = 16_000  # bytes a second that every body must reach after its first seconds
PUBLIC = frozenset({"/api/v1/health"})
POLICY = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob: data:; connect-src 'self'; "
        "media-src 'self' blob:; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(self)",
}


class RequestLog:
    """Counts requests by route, and adds the headers that every answer has."""

    def __init__(self, app: ASGIApp, metrics: ServerMetrics) -> None:
        self.app = app
        self.metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle a request."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        start, status = time.monotonic(), 500

        async def send_with_headers(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                headers = MutableHeaders(scope=message)
                for name, value in POLICY.items():
                    headers.setdefault(name, value)
                headers.setdefault("Cache-Control", "no-store" if scope["path"].startswith("/api/") else "no-cache")
                if status >= 400:
                    headers["Connection"] = "close"  # the rest of a body that was refused is not read
            await send(message)

        try:
            await self.app(scope, receive, send_with_headers)
        finally:
            route = getattr(scope.get("route"), "path", "other")
            self.metrics.add_request(route, scope["method"], status, time.monotonic() - start)


class OriginGuard:
    """Refuses requests that are addressed to another name, come from another web page, or have paths with `..`."""

    def __init__(self, app: ASGIApp, settings: Settings) -> None:
        self.app = app
        self.origins = frozenset(origin.rstrip("/").lower() for origin in settings.origins)
        self.hosts = _list_hosts(settings)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle a request."""
        problem = self._find_problem(scope) if scope["type"] == "http" else None
        if scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008})
        elif problem is None:
            await self.app(scope, receive, send)
        else:
            await _make_refusal(problem)(scope, receive, send)

    def _find_problem(self, scope: Scope) -> Problem | None:
        headers = Headers(scope=scope)
        host = headers.get("host", "")
        if len(headers.getlist("host")) != 1 or not self._is_own_host(split_host(host)):
            return Problem(403, "this server is not known by that name; use its address, or 'caprompt serve --allow-host NAME'")
        origin = headers.get("origin")
        if origin is None:  # as for an image of a foreign page; a link there may lead to the page of this server
            is_foreign = headers.get("sec-fetch-site") == "cross-site" and scope["path"] != "/"
        else:
            is_foreign = not self._is_own_origin(origin.lower(), host.lower())
        if is_foreign:
            return Problem(403, "requests from other web pages are refused; allow one by 'caprompt serve --origin URL'")
        if any(part in (".", "..") or "\\" in part or "\0" in part for part in scope["path"].split("/")):
            return Problem(422, "names in addresses must not be '.' or '..' or contain backslashes")
        return None

    def _is_own_host(self, name: str) -> bool:
        if name in self.hosts:
            return True
        try:  # no other server's name can be made to mean this one by an address without a name
            ip_address(name)
        except ValueError:
            return False
        return True

    def _is_own_origin(self, origin: str, host: str) -> bool:
        return origin in self.origins or origin in (f"http://{host}", f"https://{host}")


class TokenGuard:
    """Lets only those in who have the token, by a header or by the cookie that the address with the token sets."""

    def __init__(self, app: ASGIApp, token: str | None) -> None:
        self.app = app
        self.token = token

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle a request."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        given = self._read_query(scope) if scope["path"] == "/" else None
        if given is not None:
            await self._sign_in(scope, given)(scope, receive, send)
        elif self.token is None or scope["path"] in PUBLIC or self._is_valid(_read_token(Headers(scope=scope))):
            await self.app(scope, receive, send)
        elif scope["path"] == "/":
            await HTMLResponse(SIGN_IN, 401)(scope, receive, send)
        else:
            sentence = "this server needs its token: send 'Authorization: Bearer TOKEN', or open the page with /?token=TOKEN"
            await _make_refusal(Problem(401, sentence, {"WWW-Authenticate": "Bearer"}))(scope, receive, send)

    def _read_query(self, scope: Scope) -> str | None:
        values = parse_qs(scope["query_string"].decode("latin-1")).get("token")
        return values[0] if values and scope["method"] == "GET" else None

    def _is_valid(self, given: str | None) -> bool:
        return self.token is not None and given is not None and secrets.compare_digest(given.encode(), self.token.encode())

    def _sign_in(self, scope: Scope, given: str) -> Response:
        if self.token is not None and not self._is_valid(given):
            return HTMLResponse(SIGN_IN, 401)
        response = RedirectResponse("/", 303)
        if self.token is not None:
            is_secure = scope["scheme"] == "https"
            response.set_cookie(COOKIE, given, max_age=30 * 86400, httponly=True, samesite="strict", secure=is_secure)
        return response


class BodyGuard:
    """Bounds the size of each body, that of all bodies together, and the time that a client takes to send one."""

    def __init__(self, app: ASGIApp, limits: Limits) -> None:
        self.app = app
        self.limits = limits
        self.received = 0  # bytes of all requests that are being handled

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle a request."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        length = Headers(scope=scope).get("content-length", "0")
        if not length.isascii() or not length.isdecimal() or int(length) > self.limits.body_bytes:
            await _make_refusal(self._make_too_large())(scope, receive, send)
            return
        counted = _CountedBody(self, receive)
        try:
            await self.app(scope, counted, send)
        finally:
            self.received -= counted.size

    def _make_too_large(self) -> Problem:
        return Problem(413, f"a request may have {self.limits.body_bytes / 1e6:g} MB at most; send fewer images at once")


class _CountedBody:
    """The messages of one request, counted and timed."""

    def __init__(self, guard: BodyGuard, receive: Receive) -> None:
        self.guard = guard
        self.receive = receive
        self.size = 0
        self.is_complete = False
        self.start = time.monotonic()

    async def __call__(self) -> Message:
        """Return the next message; raise a refusal if there is too much of it, or it comes too slowly."""
        if self.is_complete:
            return await self.receive()
        limits = self.guard.limits
        deadline = self.start + limits.body_seconds + self.size / BODY_RATE
        try:
            message = await asyncio.wait_for(self.receive(), max(0.001, deadline - time.monotonic()))
        except asyncio.TimeoutError:
            raise Problem(408, "the request came too slowly; send it again") from None
        if message["type"] == "http.request":
            size = len(message.get("body", b""))
            self.size += size
            self.guard.received += size
            self.is_complete = not message.get("more_body", False)
            if self.size > limits.body_bytes:
                raise self.guard._make_too_large()
            if self.guard.received > limits.received_bytes:
                raise Problem(503, "too much is being sent to this server at once; try again", {"Retry-After": "1"})
        return message


def split_host(host: str) -> str:
    """Return the name of a Host header without its port.

    >>> split_host("LOCALHOST:8000"), split_host("[::1]:8000"), split_host("10.0.0.1")
    ('localhost', '::1', '10.0.0.1')
    """
    try:
        return (urlsplit(f"//{host}").hostname or "").lower()
    except ValueError:
        return ""


def _list_hosts(settings: Settings) -> frozenset[str]:
    own: Iterable[str] = ("localhost", settings.host, *settings.allowed_hosts)
    return frozenset(name.lower() for name in (*own, socket.gethostname()))


def _read_token(headers: Headers) -> str | None:
    kind, _, value = headers.get("authorization", "").partition(" ")
    if kind.lower() == "bearer":
        return value.strip()
    try:
        cookie = SimpleCookie(headers.get("cookie", "")).get(COOKIE)
    except CookieError:
        return None
    return cookie.value if cookie else None


def _make_refusal(problem: Problem) -> Callable[[Scope, Receive, Send], Awaitable[None]]:
    return JSONResponse({"error": problem.detail}, problem.status_code, headers=problem.headers)
