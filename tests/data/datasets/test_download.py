from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest

from caprompt.data.datasets._download import compute_checksum, download
from caprompt.errors import DataError

CONTENT = np.random.default_rng(0).bytes(600_000)


class Handler(BaseHTTPRequestHandler):
    """Serves CONTENT; `stop_at` ends the connection early, `ranges` enables range requests."""

    stop_at: int | None = None
    ranges = True
    requested: list[str | None]

    def do_GET(self) -> None:
        if self.path != "/file":
            self.send_error(404)
            return
        range_header = self.headers.get("Range")
        type(self).requested.append(range_header)
        start = int(range_header.removeprefix("bytes=").rstrip("-")) if range_header and self.ranges else 0
        if range_header and start >= len(CONTENT):
            self.send_error(416)
            return
        self.send_response(206 if start else 200)
        if start:
            self.send_header("Content-Range", f"bytes {start}-{len(CONTENT) - 1}/{len(CONTENT)}")
        self.send_header("Content-Length", str(len(CONTENT) - start))
        self.end_headers()
        self.wfile.write(CONTENT[start : self.stop_at])

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def server() -> Iterator[tuple[str, type[Handler]]]:
    handler = type("RecordingHandler", (Handler,), {"requested": []})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as httpd:
        thread = threading.Thread(target=httpd.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{httpd.server_port}/file", handler
        httpd.shutdown()
        thread.join(timeout=5)


@pytest.fixture
def checksums(tmp_path: Path) -> dict[str, str]:
    (tmp_path / "known").write_bytes(CONTENT)
    return {kind: compute_checksum(tmp_path / "known", kind) for kind in ("md5", "sha256")}


@pytest.mark.parametrize("kind", ["md5", "sha256"])
def test_download_with_progress(tmp_path: Path, server: tuple[str, type[Handler]], checksums: dict[str, str], kind: str) -> None:
    steps: list[tuple[int, int]] = []
    target = download(server[0], tmp_path / "new" / "file", checksums[kind], lambda *step: steps.append(step), timeout=5)
    assert target.read_bytes() == CONTENT
    assert [path.name for path in target.parent.iterdir()] == ["file"]
    assert steps[-1] == (len(CONTENT), len(CONTENT))
    assert steps == sorted(steps)
    download(server[0], target, checksums[kind], timeout=5)
    assert server[1].requested == [None], "an existing file is not downloaded again"


def test_interrupted_download_is_resumed(tmp_path: Path, server: tuple[str, type[Handler]], checksums: dict[str, str]) -> None:
    url, handler = server
    handler.stop_at = 250_000
    with pytest.raises(DataError, match=r"(stopped at 250,000 of 600,000 bytes|cannot be downloaded .*); try again to resume it"):
        download(url, tmp_path / "file", checksums["md5"], timeout=5)
    assert not (tmp_path / "file").exists()
    assert (tmp_path / "file.part").stat().st_size == 250_000
    handler.stop_at = None
    assert download(url, tmp_path / "file", checksums["md5"], timeout=5).read_bytes() == CONTENT
    assert handler.requested == [None, "bytes=250000-"]


def test_server_without_ranges_restarts(tmp_path: Path, server: tuple[str, type[Handler]], checksums: dict[str, str]) -> None:
    server[1].ranges = False
    (tmp_path / "file.part").write_bytes(b"old")
    assert download(server[0], tmp_path / "file", checksums["md5"], timeout=5).read_bytes() == CONTENT


def test_complete_part_is_used(tmp_path: Path, server: tuple[str, type[Handler]], checksums: dict[str, str]) -> None:
    (tmp_path / "file.part").write_bytes(CONTENT)
    assert download(server[0], tmp_path / "file", checksums["md5"], timeout=5).read_bytes() == CONTENT


def test_wrong_checksum_removes_the_file(tmp_path: Path, server: tuple[str, type[Handler]]) -> None:
    with pytest.raises(DataError, match=r"is damaged: its checksum is md5:\w{32} \(600,000 bytes\), expected md5:0"):
        download(server[0], tmp_path / "file", "md5:0", timeout=5)
    assert not list(tmp_path.iterdir())


def test_damaged_existing_file_raises(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"half")
    with pytest.raises(DataError, match=r"is damaged: .* \(4 bytes\), expected md5:0; remove it and download it again"):
        download("http://127.0.0.1:9/file", tmp_path / "file", "md5:0")
    assert (tmp_path / "file").exists(), "the user's file is not removed"


def test_unreachable_urls_raise(tmp_path: Path, server: tuple[str, type[Handler]]) -> None:
    for url, reason in (
        (server[0] + "s", "the server responded 404"),
        ("http://127.0.0.1:9/file", "refused"),
        ("http://no-such-host.invalid/file", "."),
        ("file:///etc/passwd", "must begin with https://"),
    ):
        with pytest.raises(DataError, match=f"cannot be downloaded.*{reason}"):
            download(url, tmp_path / "file", "md5:0", timeout=5)
    assert not list(tmp_path.iterdir())
