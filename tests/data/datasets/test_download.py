from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest

from caprompt.data.datasets._download import checksum_of, download
from caprompt.errors import DataError

CONTENT = np.random.default_rng(0).bytes(600_000)


class Handler(BaseHTTPRequestHandler):
    """Serves CONTENT; `stop_at` ends the connection early, `ranges` says whether it can go on from the middle."""

    stop_at: int | None = None
    ranges = True
    asked: list[str | None]

    def do_GET(self) -> None:
        if self.path != "/file":
            self.send_error(404)
            return
        wanted = self.headers.get("Range")
        type(self).asked.append(wanted)
        start = int(wanted.removeprefix("bytes=").rstrip("-")) if wanted and self.ranges else 0
        if wanted and start >= len(CONTENT):
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
    handler = type("OwnHandler", (Handler,), {"asked": []})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as httpd:
        thread = threading.Thread(target=httpd.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{httpd.server_port}/file", handler
        httpd.shutdown()
        thread.join(timeout=5)


@pytest.fixture
def right(tmp_path: Path) -> dict[str, str]:
    (tmp_path / "known").write_bytes(CONTENT)
    return {kind: checksum_of(tmp_path / "known", kind) for kind in ("md5", "sha256")}


@pytest.mark.parametrize("kind", ["md5", "sha256"])
def test_a_file_arrives_whole_with_progress(
    tmp_path: Path, server: tuple[str, type[Handler]], right: dict[str, str], kind: str
) -> None:
    seen: list[tuple[int, int]] = []
    target = download(server[0], tmp_path / "new" / "file", right[kind], lambda *step: seen.append(step), timeout=5)
    assert target.read_bytes() == CONTENT
    assert [path.name for path in target.parent.iterdir()] == ["file"]
    assert seen[-1] == (len(CONTENT), len(CONTENT))
    assert seen == sorted(seen)
    download(server[0], target, right[kind], timeout=5)
    assert server[1].asked == [None], "what is here is not fetched again"


def test_a_stopped_download_is_resumed(tmp_path: Path, server: tuple[str, type[Handler]], right: dict[str, str]) -> None:
    url, handler = server
    handler.stop_at = 250_000
    with pytest.raises(
        DataError, match=r"(stopped at 250,000 of 600,000 bytes|cannot be downloaded .*); the same command goes on from there"
    ):
        download(url, tmp_path / "file", right["md5"], timeout=5)
    assert not (tmp_path / "file").exists()
    assert (tmp_path / "file.part").stat().st_size == 250_000
    handler.stop_at = None
    assert download(url, tmp_path / "file", right["md5"], timeout=5).read_bytes() == CONTENT
    assert handler.asked == [None, "bytes=250000-"]


def test_a_server_without_ranges_sends_it_all_again(
    tmp_path: Path, server: tuple[str, type[Handler]], right: dict[str, str]
) -> None:
    server[1].ranges = False
    (tmp_path / "file.part").write_bytes(b"old")
    assert download(server[0], tmp_path / "file", right["md5"], timeout=5).read_bytes() == CONTENT


def test_a_part_that_is_already_whole(tmp_path: Path, server: tuple[str, type[Handler]], right: dict[str, str]) -> None:
    (tmp_path / "file.part").write_bytes(CONTENT)
    assert download(server[0], tmp_path / "file", right["md5"], timeout=5).read_bytes() == CONTENT


def test_a_wrong_checksum_keeps_nothing(tmp_path: Path, server: tuple[str, type[Handler]]) -> None:
    with pytest.raises(DataError, match=r"is damaged: its checksum is md5:\w{32} \(600,000 bytes\), expected md5:0"):
        download(server[0], tmp_path / "file", "md5:0", timeout=5)
    assert not list(tmp_path.iterdir())


def test_a_damaged_copy_already_there_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"half")
    with pytest.raises(DataError, match=r"is damaged: .* \(4 bytes\), expected md5:0; remove it and download it again"):
        download("http://127.0.0.1:9/file", tmp_path / "file", "md5:0")
    assert (tmp_path / "file").exists(), "a person's own file is theirs to remove"


def test_what_cannot_be_reached(tmp_path: Path, server: tuple[str, type[Handler]]) -> None:
    for url, reason in (
        (server[0] + "s", "the server answered 404"),
        ("http://127.0.0.1:9/file", "refused"),
        ("http://no-such-host.invalid/file", "."),
        ("file:///etc/passwd", "must begin with https://"),
    ):
        with pytest.raises(DataError, match=f"cannot be downloaded.*{reason}"):
            download(url, tmp_path / "file", "md5:0", timeout=5)
    assert not list(tmp_path.iterdir())
