"""Archives (.tar, .tar.gz, .tgz, .zip) unpacked so that a hostile or broken one does no harm.

Every file lands inside the target folder or nothing does: absolute paths, "..", links and devices are refused, the unpacked size is
limited, and the folder appears under its name only when all of it is there.
"""

from __future__ import annotations

import lzma
import stat
import tarfile
import tempfile
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path, PurePosixPath
from typing import IO

from caprompt.errors import DataError

__all__ = ["MAX_BYTES", "unpack"]

MAX_FILES = 1_000_000
MAX_BYTES = 40 * 10**9  # the largest of our data sets unpacks to 2.5 GB
_CHUNK = 2**20
_BROKEN = (tarfile.TarError, zipfile.BadZipFile, zlib.error, lzma.LZMAError, EOFError, NotImplementedError, RuntimeError)


def unpack(archive: Path, folder: Path, max_bytes: int = MAX_BYTES) -> Path:
    """Unpack the archive's top folder named like `folder` to `folder`, all of it or nothing; a folder already there stays."""
    if folder.exists():
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".unpacking-", dir=folder.parent, ignore_cleanup_errors=True) as place:
        try:
            _unpack_into(archive, Path(place), max_bytes)
        except (*_BROKEN, OSError) as error:
            if isinstance(error, OSError) and not _is_about_content(error):
                raise  # a full disk or missing permission is not the archive's fault
            size = f"{archive.stat().st_size:,} bytes"
            raise DataError(f"the archive '{archive}' is damaged or incomplete ({size}, {_reason(error)}); get it anew") from error
        inner = Path(place, folder.name)
        if not inner.is_dir():
            found = ", ".join(sorted(entry.name for entry in Path(place).iterdir())[:3]) or "nothing"
            raise DataError(f"the archive '{archive}' has no folder '{folder.name}' in it, but {found}; get the official one")
        with suppress(FileExistsError, FileNotFoundError):
            inner.rename(folder)
    if not folder.is_dir():
        raise DataError(f"'{archive}' could not be unpacked to '{folder}'; look what is in its place")
    return folder


def _unpack_into(archive: Path, place: Path, max_bytes: int) -> None:
    left = max_bytes
    for number, (name, size, content) in enumerate(_members(archive)):
        if number == MAX_FILES:
            raise DataError(f"the archive '{archive}' holds more than {MAX_FILES:,} files and is refused; get the official one")
        target = place.joinpath(*_safe_parts(name, archive))
        if content is None:
            target.mkdir(parents=True, exist_ok=True)
            continue
        target.parent.mkdir(parents=True, exist_ok=True)
        with target.open("xb") as file:  # "x": an archive that holds a name twice hides one of the two
            written = 0
            while chunk := content.read(min(_CHUNK, left - written + 1)):
                written += file.write(chunk)
                if written > left:
                    raise DataError(
                        f"the archive '{archive}' unpacks to more than {max_bytes:,} bytes and is refused; get the official one"
                    )
        if written != size:
            raise EOFError(f"'{name}' has {written:,} of {size:,} bytes")
        left -= written


def _members(archive: Path) -> Iterator[tuple[str, int, IO[bytes] | None]]:
    """Name, size and content of every file in the archive; a folder has no content."""
    return _zip_members(archive) if archive.suffix.lower() == ".zip" else _tar_members(archive)


def _tar_members(archive: Path) -> Iterator[tuple[str, int, IO[bytes] | None]]:
    with tarfile.open(archive, "r|*") as tar:
        for member in tar:
            if not (member.isreg() or member.isdir()):
                raise DataError(
                    f"the archive '{archive}' is refused: '{member.name}' in it is a link or a device; get the official one"
                )
            yield member.name, member.size, None if member.isdir() else tar.extractfile(member)


def _zip_members(archive: Path) -> Iterator[tuple[str, int, IO[bytes] | None]]:
    with zipfile.ZipFile(archive) as packed:
        for member in packed.infolist():
            kind = stat.S_IFMT(member.external_attr >> 16)
            if kind not in (0, stat.S_IFREG, stat.S_IFDIR):
                raise DataError(
                    f"the archive '{archive}' is refused: '{member.filename}' in it is a link or a device; get the official one"
                )
            if member.is_dir():
                yield member.filename, 0, None
                continue
            with packed.open(member) as content:
                yield member.filename, member.file_size, content


def _safe_parts(name: str, archive: Path) -> tuple[str, ...]:
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts or "\\" in name or ":" in name or "\0" in name:
        raise DataError(f"the archive '{archive}' is refused: '{name}' in it would land outside its folder; get the official one")
    return path.parts


def _is_about_content(error: OSError) -> bool:
    """gzip and bz2 report a broken stream as an OSError without a number; a name held twice is FileExistsError."""
    return error.errno is None or isinstance(error, FileExistsError)


def _reason(error: Exception) -> str:
    if isinstance(error, FileExistsError):
        return f"it holds '{Path(error.filename).name}' twice"
    return (str(error) or type(error).__name__).rstrip(".")
