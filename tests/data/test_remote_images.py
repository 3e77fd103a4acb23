"""Images at addresses: of files, and of a small S3 server on this machine."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, unquote, urlsplit

import pytest
from helpers import write_squares

from caprompt.data.images import decode
from caprompt.data.remote_images import list_remote_images, read_remote_image
from caprompt.errors import DataError, InputError, StorageError

LISTING = """<?xml version="1.0"?><ListBucketResult><Name>photos</Name><IsTruncated>false</IsTruncated>
<KeyCount>{count}</KeyCount>{rows}</ListBucketResult>"""
ROW = "<Contents><Key>{key}</Key><Size>{size}</Size><LastModified>2026-01-01T00:00:00.000Z</LastModified></Contents>"


class S3Handler(BaseHTTPRequestHandler):
    """Lists and reads the objects of a bucket, as much of S3 as reading needs."""

    objects: dict[str, bytes]

    def do_HEAD(self) -> None:
        self._answer(with_body=False)

    def do_GET(self) -> None:
        self._answer(with_body=True)

    def _answer(self, with_body: bool) -> None:
        parts = urlsplit(self.path)
        _, _, key = unquote(parts.path).lstrip("/").partition("/")
        query = parse_qs(parts.query)
        if key.endswith("denied.png"):
            self._send(403, b"", with_body)
            return
        if not key and "list-type" in query:
            prefix = query.get("prefix", [""])[0]
            rows = [ROW.format(key=name, size=len(data)) for name, data in sorted(self.objects.items()) if name.startswith(prefix)]
            self._send(200, LISTING.format(count=len(rows), rows="".join(rows)).encode(), with_body)
        elif not key or key in self.objects:
            content = self.objects.get(key, b"")
            wanted = self.headers.get("Range")
            if wanted:
                first, _, last = wanted.removeprefix("bytes=").partition("-")
                content = content[int(first) : int(last) + 1 if last else None]
            self._send(206 if wanted else 200, content, with_body)
        else:
            self._send(404, b"", with_body)

    def _send(self, status: int, content: bytes, with_body: bool) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(content)))
        self.send_header("Last-Modified", "Thu, 01 Jan 2026 00:00:00 GMT")
        self.end_headers()
        if with_body:
            self.wfile.write(content)

    def log_message(self, *details: object) -> None:
        """Print nothing."""


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    write_squares(tmp_path / "photos", ["red", "blue"], each=2)
    (tmp_path / "photos" / "red" / "notes.txt").write_text("none")
    return tmp_path / "photos"


@pytest.fixture
def bucket(photos: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Return the options of an address that lead to a server with the photos."""
    pytest.importorskip("pyarrow", reason="the package pyarrow is not installed (the extra caprompt[cluster])")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "any")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "any")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    files = [path for path in photos.rglob("*") if path.is_file()]
    S3Handler.objects = {f"album/{path.relative_to(photos).as_posix()}": path.read_bytes() for path in files}
    with ThreadingHTTPServer(("127.0.0.1", 0), S3Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"?scheme=http&region=us-east-1&endpoint_override=127.0.0.1:{server.server_port}"
        server.shutdown()


def test_files_by_their_address(photos: Path) -> None:
    base = photos.as_uri()
    names = [f"{base}/{name}" for name in ("blue/000.png", "blue/001.png", "red/000.png", "red/001.png")]
    assert list_remote_images(base) == list_remote_images(base + "/") == names
    assert list_remote_images(names[0]) == [names[0]]
    assert (decode(read_remote_image(names[2])) == decode(photos / "red" / "000.png")).all()


def test_objects_in_a_bucket(photos: Path, bucket: str) -> None:
    names = list_remote_images(f"s3://photos/album{bucket}")
    assert names == [f"s3://photos/album/{name}{bucket}" for name in ("blue/000.png", "blue/001.png", "red/000.png", "red/001.png")]
    assert (decode(read_remote_image(names[2])) == decode(photos / "red" / "000.png")).all()
    with pytest.raises(DataError, match="cannot be read") as missing:
        read_remote_image(f"s3://photos/album/none.png{bucket}")
    assert not isinstance(missing.value, StorageError)
    with pytest.raises(StorageError, match="denied.png.*cannot be read"):
        read_remote_image(f"s3://photos/album/denied.png{bucket}")


def test_bad_addresses_are_sentences(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="there is no image at"):
        list_remote_images(tmp_path.as_uri())
    with pytest.raises(InputError, match="addresses that begin with nobody:// cannot be read"):
        list_remote_images("nobody://photos")
