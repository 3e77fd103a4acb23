from __future__ import annotations

import json
import socket
import time
from collections.abc import Iterator
from http.client import HTTPConnection, HTTPResponse
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from serve.running import RunningServer, png, run_server, write_model

from caprompt.client import Client
from caprompt.serve.settings import Limits

TOKEN = "correct horse battery staple"


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory, backbone: Path) -> Iterator[RunningServer]:
    """Return a server with a token, low limits and one allowed page."""
    limits = Limits(body_bytes=100_000, header_seconds=1.0, body_seconds=1.0)
    folder = write_model(tmp_path_factory.mktemp("guarded") / "pets", backbone)
    with run_server(folder, token=TOKEN, limits=limits, origins=("https://lab.example",)) as server:
        yield server


def ask(
    server: RunningServer, path: str, method: str = "GET", body: Any = None, **headers: str
) -> tuple[HTTPResponse, dict[str, Any]]:
    connection = HTTPConnection(*server.address, timeout=30)
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    connection.request(method, path, body, named)
    response = connection.getresponse()
    content = response.read()
    connection.close()
    return response, json.loads(content) if response.headers.get_content_type() == "application/json" else {}


BEARER = {"Authorization": f"Bearer {TOKEN}"}


@pytest.mark.parametrize(
    "path", ["/api/v1/models", "/api/v1/models/pets", "/metrics", "/static/index.html", "/api/v1/openapi.json"]
)
def test_nothing_is_served_without_the_token(guarded: RunningServer, path: str) -> None:
    for headers in ({}, {"Authorization": "Bearer wrong"}, {"Cookie": "caprompt_token=wrong"}, {"Authorization": f"Basic {TOKEN}"}):
        response, answer = ask(guarded, path, **headers)
        assert response.status == 401
        assert "token" in answer["error"]
        assert response.headers["WWW-Authenticate"] == "Bearer"
    assert ask(guarded, path, **BEARER)[0].status == 200


def test_health_needs_no_token(guarded: RunningServer) -> None:
    assert ask(guarded, "/api/v1/health")[1]["status"] == "ok"


def test_the_address_with_the_token_sets_a_cookie_and_the_page_asks_for_it_otherwise(guarded: RunningServer) -> None:
    page, _ = ask(guarded, "/")
    assert (page.status, page.headers.get_content_type()) == (401, "text/html")
    assert ask(guarded, "/?token=wrong")[0].status == 401
    response, _ = ask(guarded, f"/?token={TOKEN.replace(' ', '+')}")
    assert (response.status, response.headers["Location"]) == (303, "/")
    cookie = response.headers["Set-Cookie"]
    assert "HttpOnly" in cookie
    assert "SameSite=strict" in cookie
    assert ask(guarded, "/api/v1/models", Cookie=cookie.partition(";")[0])[0].status == 200


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:80", "localhost.evil.example", "", "127.0.0.1.evil.example", "[::1"]
)
def test_a_foreign_host_is_refused(guarded: RunningServer, host: str) -> None:
    response, answer = ask(guarded, "/api/v1/models", Host=host, **BEARER)
    assert response.status in (400, 403)
    if response.status == 403:
        assert "not known by that name" in answer["error"]


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1:9", "[::1]:8000", "LocalHost:8000"])
def test_own_names_are_accepted(guarded: RunningServer, host: str) -> None:
    assert ask(guarded, "/api/v1/models", Host=host, **BEARER)[0].status == 200


@pytest.mark.parametrize("origin", ["http://evil.example", "null", "http://localhost:1", "https://lab.example.evil.example"])
@pytest.mark.parametrize("method", ["GET", "POST", "OPTIONS"])
def test_a_foreign_origin_is_refused(guarded: RunningServer, origin: str, method: str) -> None:
    response, answer = ask(guarded, "/api/v1/models", method, Origin=origin, **BEARER)
    assert response.status == 403
    assert "other web pages" in answer["error"]
    assert "Access-Control-Allow-Origin" not in response.headers


def test_parts_of_a_foreign_page_are_refused_but_links_to_the_page_work(guarded: RunningServer) -> None:
    foreign = {"Sec_Fetch_Site": "cross-site", **BEARER}
    for path in ("/api/v1/models", "/api/v1/models/pets/download", "/api/v1/models/pets/thumbnail?name=red"):
        response, answer = ask(guarded, path, **foreign)
        assert response.status == 403
        assert "other web pages" in answer["error"]
    assert ask(guarded, "/", **foreign)[0].status == 200
    assert ask(guarded, "/api/v1/models", Origin="https://lab.example", **foreign)[0].status == 200
    assert ask(guarded, "/api/v1/models", Sec_Fetch_Site="same-origin", **BEARER)[0].status == 200


def test_the_own_page_and_allowed_ones_may_ask(guarded: RunningServer) -> None:
    own = guarded.url.rstrip("/")
    assert ask(guarded, "/api/v1/models", Origin=own, **BEARER)[0].status == 200
    response, _ = ask(guarded, "/api/v1/models", Origin="https://lab.example", **BEARER)
    assert response.headers["Access-Control-Allow-Origin"] == "https://lab.example"
    preflight, _ = ask(guarded, "/api/v1/models", "OPTIONS", Origin="https://lab.example", Access_Control_Request_Method="POST")
    assert preflight.status == 200


def test_answers_have_the_headers_that_keep_browsers_safe(guarded: RunningServer) -> None:
    for path in ("/", "/api/v1/models", "/nowhere"):
        headers = ask(guarded, path, **BEARER)[0].headers
        policy = headers["Content-Security-Policy"]
        assert "default-src 'none'" in policy
        assert "script-src 'self'" in policy
        assert "unsafe" not in policy
        assert "frame-ancestors 'none'" in policy
        assert headers["X-Content-Type-Options"] == "nosniff"
        assert headers["Referrer-Policy"] == "no-referrer"
        assert headers["Cross-Origin-Opener-Policy"] == "same-origin"
        assert headers["Cross-Origin-Resource-Policy"] == "same-origin"
        assert headers["Permissions-Policy"] == "camera=(self)"
        assert "Server" not in headers


def start_request(connection: socket.socket, path: str, *headers: str) -> None:
    lines = [f"POST {path} HTTP/1.1", "Host: localhost", f"Authorization: Bearer {TOKEN}", *headers, "", ""]
    connection.sendall("\r\n".join(lines).encode())


def read_all(connection: socket.socket) -> bytes:
    answer = b""
    while part := connection.recv(10_000):
        answer += part
    return answer


def test_a_body_that_is_too_long_is_refused_by_its_length_before_it_is_sent(guarded: RunningServer) -> None:
    with socket.create_connection(guarded.address, timeout=10) as connection:
        start_request(connection, "/api/v1/models/pets/predict", "Content-Type: image/png", "Content-Length: 100001")
        answer = read_all(connection)
    assert answer.startswith(b"HTTP/1.1 413 ")
    assert b"0.1 MB at most" in answer


FORM_START = b'--x\r\nContent-Disposition: form-data; name="images"; filename="a"\r\n\r\n'


@pytest.mark.parametrize(
    ("path", "kind", "start"),
    [
        ("/models/pets/predict", "image/png", b""),
        ("/models/pets/predict", "multipart/form-data; boundary=x", FORM_START),
        ("/models", "application/json", b'{"name": "'),
    ],
    ids=["raw", "form", "json"],
)
def test_a_chunked_body_is_refused_once_it_is_too_long(guarded: RunningServer, path: str, kind: str, start: bytes) -> None:
    with socket.create_connection(guarded.address, timeout=10) as connection:
        start_request(connection, f"/api/v1{path}", f"Content-Type: {kind}", "Transfer-Encoding: chunked")
        for data in (start + b"a" * (50_000 - len(start)), b"a" * 50_000, b"a"):
            connection.sendall(f"{len(data):x}\r\n".encode() + data + b"\r\n")
        answer = read_all(connection)
    assert answer.startswith(b"HTTP/1.1 413 ")
    assert b"0.1 MB at most" in answer


@pytest.mark.parametrize(
    "path",
    ["/models/../pets", "/models/..", "/models/%2e%2e", "/models/..%2fpets", "/models/a%5cb", "/models/.%2f", "/models/a%00"],
)
def test_dots_in_an_address_are_refused(guarded: RunningServer, path: str) -> None:
    response, answer = ask(guarded, f"/api/v1{path}", **BEARER)
    assert response.status == 422
    assert "error" in answer


@pytest.mark.parametrize("path", ["/static/../app.py", "/static/%2e%2e/app.py", "/static/..%2fapp.py", "/static//etc/passwd"])
def test_no_other_file_is_served(guarded: RunningServer, path: str) -> None:
    assert ask(guarded, path, **BEARER)[0].status in (404, 422)


@pytest.mark.parametrize("name", ["con", "NUL", "-x", "a.b", "ä", "x" * 65])
def test_reserved_and_invalid_names_are_refused(guarded: RunningServer, name: str) -> None:
    response, answer = ask(guarded, f"/api/v1/models/{quote(name)}", **BEARER)
    assert response.status == 422
    assert "cannot be the name of a model" in answer["error"]


def test_two_hundred_slow_clients_do_not_stop_others_and_are_cut_off(guarded: RunningServer) -> None:
    slow = []
    for number in range(200):
        connection = socket.create_connection(guarded.address, timeout=20)
        if number % 2:  # slow headers
            connection.sendall(b"GET /api/v1/health HTTP/1.1\r\nHost: local")
        else:  # a slow body
            start_request(connection, "/api/v1/models/pets/predict", "Content-Type: image/png", "Content-Length: 90000")
            connection.sendall(b"abc")
        slow.append(connection)
    with Client(guarded.url, token=TOKEN) as client:
        start = time.monotonic()
        for seed in range(5):
            assert client.predict("pets", [png("red", seed)])[0]["label"] == "red"
        assert time.monotonic() - start < 5
    answers = []
    for connection in slow:
        answers.append(connection.recv(10_000))  # the end of the connection, or a refusal, and not a timeout
        connection.close()
    assert sum(b" 408 " in answer for answer in answers) == 100
    assert sum(answer == b"" for answer in answers) == 100


def test_all_bodies_together_are_bounded(tmp_path: Path, backbone: Path) -> None:
    limits = Limits(received_bytes=1000)
    with run_server(write_model(tmp_path / "pets", backbone), limits=limits) as server:
        response, answer = ask(server, "/api/v1/models/pets/predict", "POST", b"a" * 2000, Content_Type="image/png")
        assert (response.status, response.headers["Retry-After"]) == (503, "1")
        assert "at once" in answer["error"]
        assert ask(server, "/api/v1/models/pets/predict", "POST", b"a" * 900, Content_Type="image/png")[0].status == 422


def test_an_open_address_gets_a_token(tmp_path: Path, backbone: Path) -> None:
    with run_server(tmp_path / "pets", host="0.0.0.0", backbone=str(backbone)) as server:
        token = server.service.settings.token
        assert token is not None
        assert len(token) >= 24
        port = server.address[1]
        server.url = f"http://127.0.0.1:{port}/"
        assert ask(server, "/api/v1/models")[0].status == 401
        assert ask(server, "/api/v1/models", Authorization=f"Bearer {token}")[0].status == 200
