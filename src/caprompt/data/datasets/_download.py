"""A file from the web: resumed where it stopped, and kept only if its checksum is right."""

from __future__ import annotations

import hashlib
import http.client
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import IO, TypeAlias

from caprompt.errors import DataError

__all__ = ["Progress", "checksum_of", "download"]

Progress: TypeAlias = Callable[[int, int], None]

_CHUNK = 2**18


def download(url: str, target: Path, checksum: str, on_progress: Progress | None = None, timeout: float = 30.0) -> Path:
    """Fetch `url` to `target`; `checksum` is written like "md5:eb90..." or "sha256:...".

    What has arrived lies in `target` + ".part" until it is whole, and a later call goes on from there.
    `on_progress(bytes here, bytes in all)` is called after each piece; a total that the server does not tell is 0.
    """
    if target.exists():
        _check(target, checksum)
        return target
    if not url.startswith(("http://", "https://")):
        raise DataError(f"'{url}' cannot be downloaded; the address must begin with https:// or http://")
    target.parent.mkdir(parents=True, exist_ok=True)
    part = target.with_name(target.name + ".part")
    try:
        total = _fetch(url, part, on_progress, timeout)
    except (urllib.error.URLError, http.client.HTTPException, ConnectionError, TimeoutError) as error:
        raise DataError(f"'{url}' cannot be downloaded ({_reason(error)}); {_advice(part, target)}") from error
    arrived = part.stat().st_size
    if arrived < total:
        raise DataError(f"the download of '{url}' stopped at {arrived:,} of {total:,} bytes; {_advice(part, target)}")
    try:
        _check(part, checksum)
    except DataError:
        part.unlink()  # to go on from wrong bytes would never end well
        raise
    part.replace(target)
    return target


def checksum_of(path: Path, kind: str) -> str:
    """The file's checksum, "md5:..." or "sha256:..."."""
    total = hashlib.new(kind, usedforsecurity=False)
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK):
            total.update(chunk)
    return f"{kind}:{total.hexdigest()}"


def _fetch(url: str, part: Path, on_progress: Progress | None, timeout: float) -> int:
    """Append what is missing; how many bytes there should be, or 0 where the server does not tell."""
    here = part.stat().st_size if part.exists() else 0
    request = urllib.request.Request(url, headers={"User-Agent": "caprompt", "Accept-Encoding": "identity"})
    if here:
        request.add_header("Range", f"bytes={here}-")
    try:
        with urllib.request.urlopen(request, timeout=timeout) as reply:
            resumed = reply.status == 206 and reply.headers.get("Content-Range", "").startswith(f"bytes {here}-")
            if not resumed:
                here = 0  # the server sends the whole file
            length = reply.headers.get("Content-Length")
            total = here + int(length) if length else 0
            with part.open("ab" if resumed else "wb") as file:
                _copy(reply, file, here, total, on_progress)
    except urllib.error.HTTPError as error:
        if error.code == 416:  # nothing is left to send: the checksum will tell whether what is here is right
            return here
        raise
    return total


def _copy(reply: IO[bytes], file: IO[bytes], here: int, total: int, on_progress: Progress | None) -> None:
    while chunk := reply.read(_CHUNK):
        here += file.write(chunk)
        if on_progress is not None:
            on_progress(here, total)


def _check(path: Path, checksum: str) -> None:
    found = checksum_of(path, checksum.partition(":")[0])
    if found != checksum:
        size = path.stat().st_size
        raise DataError(
            f"'{path}' is damaged: its checksum is {found} ({size:,} bytes), expected {checksum}; remove it and download it again"
        )


def _advice(part: Path, target: Path) -> str:
    if part.exists() and part.stat().st_size:
        return "the same command goes on from there"
    return f"get it another way and put it at '{target}'"


def _reason(error: Exception) -> str:
    if isinstance(error, urllib.error.HTTPError):
        return f"the server answered {error.code} {error.reason}"
    if isinstance(error, urllib.error.URLError):
        return str(getattr(error.reason, "strerror", None) or error.reason)
    return str(error) or type(error).__name__
