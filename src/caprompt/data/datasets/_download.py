"""Resumable HTTP downloads with checksums."""

from __future__ import annotations

import hashlib
import http.client
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import IO, TypeAlias

from caprompt.errors import DataError

__all__ = ["Progress", "compute_checksum", "download"]

Progress: TypeAlias = Callable[[int, int], None]

_CHUNK = 2**18


def download(url: str, target: Path, checksum: str, on_progress: Progress | None = None, timeout: float = 30.0) -> Path:
    """Download `url` to `target` and verify its checksum.

    The checksum is written like "md5:eb90..." or "sha256:...". Until it is complete, the download
    is stored at `target` + ".part", and a later call resumes it. `on_progress(received bytes, total
    bytes)` is called after each chunk; an unknown total is 0.
    """
    if target.exists():
        _verify_checksum(target, checksum)
        return target
    if not url.startswith(("http://", "https://")):
        raise DataError(f"'{url}' cannot be downloaded; the address must begin with https:// or http://")
    target.parent.mkdir(parents=True, exist_ok=True)
    part = target.with_name(target.name + ".part")
    try:
        total = _fetch(url, part, on_progress, timeout)
    except (urllib.error.URLError, http.client.HTTPException, ConnectionError, TimeoutError) as error:
        raise DataError(f"'{url}' cannot be downloaded ({_describe_error(error)}); {_make_advice(part, target)}") from error
    received = part.stat().st_size
    if received < total:
        raise DataError(f"the download of '{url}' stopped at {received:,} of {total:,} bytes; {_make_advice(part, target)}")
    try:
        _verify_checksum(part, checksum)
    except DataError:
        part.unlink()  # resuming from wrong bytes could never succeed
        raise
    part.replace(target)
    return target


def compute_checksum(path: Path, algorithm: str) -> str:
    """Return the file's checksum, "md5:..." or "sha256:..."."""
    digest = hashlib.new(algorithm, usedforsecurity=False)
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK):
            digest.update(chunk)
    return f"{algorithm}:{digest.hexdigest()}"


def _fetch(url: str, part: Path, on_progress: Progress | None, timeout: float) -> int:
    """Append the missing bytes to `part`; return the total size, or 0 if it is unknown."""
    received = part.stat().st_size if part.exists() else 0
    request = urllib.request.Request(url, headers={"User-Agent": "caprompt", "Accept-Encoding": "identity"})
    if received:
        request.add_header("Range", f"bytes={received}-")
    try:
        with urllib.request.urlopen(request, timeout=timeout) as response:
            resumed = response.status == 206 and response.headers.get("Content-Range", "").startswith(f"bytes {received}-")
            if not resumed:
                received = 0  # the server sends the whole file
            length = response.headers.get("Content-Length")
            total = received + int(length) if length else 0
            with part.open("ab" if resumed else "wb") as file:
                _copy(response, file, received, total, on_progress)
    except urllib.error.HTTPError as error:
        if error.code == 416:  # no bytes are missing: the checksum decides whether they are right
            return received
        raise
    return total


def _copy(response: IO[bytes], file: IO[bytes], received: int, total: int, on_progress: Progress | None) -> None:
    while chunk := response.read(_CHUNK):
        received += file.write(chunk)
        if on_progress is not None:
            on_progress(received, total)


def _verify_checksum(path: Path, checksum: str) -> None:
    actual = compute_checksum(path, checksum.partition(":")[0])
    if actual != checksum:
        size = path.stat().st_size
        raise DataError(
            f"'{path}' is damaged: its checksum is {actual} ({size:,} bytes), expected {checksum}; remove it and download it again"
        )


def _make_advice(part: Path, target: Path) -> str:
    if part.exists() and part.stat().st_size:
        return "try again to resume it"
    return f"get it another way and put it at '{target}'"


def _describe_error(error: Exception) -> str:
    if isinstance(error, urllib.error.HTTPError):
        return f"the server responded {error.code} {error.reason}"
    if isinstance(error, urllib.error.URLError):
        return str(getattr(error.reason, "strerror", None) or error.reason)
    return str(error) or type(error).__name__
