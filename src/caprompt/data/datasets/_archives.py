"""Safe unpacking of archives (.tar, .tar.gz, .tgz, .zip).

Either all files are unpacked into the target folder or none: absolute paths, "..", links, devices
and sparse files are refused, the unpacked size is limited, and the folder gets its name only once
it is complete.
"""

from __future__ import annotations

import errno
import lzma
import stat
import struct
import tarfile
import tempfile
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path, PurePosixPath
from typing import IO

from caprompt.errors import DataError, first_line

__all__ = ["MAX_BYTES", "unpack"]

MAX_FILES = 1_000_000
MAX_BYTES = 40 * 10**9  # the largest of the known datasets unpacks to 2.5 GB
FEW_BYTES = 10**8  # up to this, an archive may unpack to any multiple of its size
MAX_EXPANSION = 100  # times its size; images hardly compress, so that an archive of more was made to fill the disk
MAX_HEADER = 2**20  # bytes of an extended header of a tar archive, which is read as a whole; they hold long names
_CHUNK = 2**20
_EXTENDED = (tarfile.XHDTYPE, tarfile.SOLARIS_XHDTYPE, tarfile.XGLTYPE, tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK)
# What the parsers raise for damaged archives.
_BROKEN = (
    tarfile.TarError,
    AttributeError,  # of tarfile in Python 3.10, for a damaged gzip header
    zipfile.BadZipFile,
    zlib.error,
    lzma.LZMAError,
    struct.error,
    ArithmeticError,
    EOFError,
    LookupError,
    MemoryError,
    RuntimeError,
    UnicodeError,
)
# Of files: a name that is too long or that no file can have, and a seek to before the beginning.
_NAME_ERRORS = (errno.ENAMETOOLONG, errno.EINVAL, errno.EILSEQ)


def unpack(archive: Path, folder: Path, max_bytes: int = MAX_BYTES) -> Path:
    """Unpack the archive's top-level folder of the same name to `folder`, completely or not at all.

    An existing `folder` is left unchanged.
    """
    if folder.exists():
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".unpacking-", dir=folder.parent, ignore_cleanup_errors=True) as temporary:
        try:
            _unpack_into(archive, Path(temporary), min(max_bytes, max(FEW_BYTES, MAX_EXPANSION * archive.stat().st_size)))
        except (*_BROKEN, OSError) as error:
            if isinstance(error, OSError) and not _is_content_error(error):
                raise  # a full disk or a missing permission is no fault of the archive
            details = f"{archive.stat().st_size:,} bytes, {_describe_error(error)}"
            raise DataError(f"the archive '{archive}' is damaged or incomplete ({details}); download it again") from error
        inner = Path(temporary, folder.name)
        if not inner.is_dir():
            entries = ", ".join(sorted(entry.name for entry in Path(temporary).iterdir())[:3]) or "nothing"
            raise DataError(f"the archive '{archive}' contains no folder '{folder.name}', but {entries}; get the official one")
        with suppress(FileExistsError, FileNotFoundError):
            inner.rename(folder)
    if not folder.is_dir():
        raise DataError(f"'{archive}' could not be unpacked to '{folder}'; check what exists at that path")
    return folder


def _unpack_into(archive: Path, folder: Path, max_bytes: int) -> None:
    remaining = max_bytes
    for number, (name, size, content) in enumerate(_iter_members(archive)):
        if number == MAX_FILES:
            raise DataError(f"the archive '{archive}' contains more than {MAX_FILES:,} files and is refused; get the official one")
        target = folder.joinpath(*_check_parts(name, archive))
        if content is None:
            target.mkdir(parents=True, exist_ok=True)
            continue
        target.parent.mkdir(parents=True, exist_ok=True)
        with target.open("xb") as file:  # "x": of a name that occurs twice, one file would be lost
            written = 0
            while chunk := content.read(min(_CHUNK, remaining - written + 1)):
                written += file.write(chunk)
                if written > remaining:
                    raise DataError(
                        f"the archive '{archive}' unpacks to more than {max_bytes:,} bytes and is refused; get the official one"
                    )
        if written != size:
            raise EOFError(f"{name!r} has {written:,} of {size:,} bytes")
        remaining -= written


def _iter_members(archive: Path) -> Iterator[tuple[str, int, IO[bytes] | None]]:
    """Yield name, size and content of every member; for a folder the content is None."""
    return _iter_zip_members(archive) if archive.suffix.lower() == ".zip" else _iter_tar_members(archive)


def _iter_tar_members(archive: Path) -> Iterator[tuple[str, int, IO[bytes] | None]]:
    with tarfile.open(archive, "r|*", tarinfo=_make_member_class(archive)) as tar:
        for member in tar:
            if not (member.isreg() or member.isdir()) or member.issparse():
                kind = "a sparse file" if member.issparse() else "a link or a device"
                raise DataError(f"the archive '{archive}' is refused: its member {member.name!r} is {kind}; get the official one")
            yield member.name, member.size, None if member.isdir() else tar.extractfile(member)


def _make_member_class(archive: Path) -> type[tarfile.TarInfo]:
    """Return a class of members that refuses extended headers too long for memory; global ones, which add up, in total."""

    class Member(tarfile.TarInfo):
        global_bytes = 0

        # The one method that all versions of tarfile call for every header before they read on; it is not a public one.
        def _proc_member(self, tar: tarfile.TarFile) -> tarfile.TarInfo:
            if self.type == tarfile.XGLTYPE:
                Member.global_bytes += self.size
            if self.type in _EXTENDED and max(self.size, Member.global_bytes) > MAX_HEADER:
                raise DataError(f"the archive '{archive}' is refused: it has a header of {self.size:,} bytes; get the official one")
            member: tarfile.TarInfo = super()._proc_member(tar)  # type: ignore[misc]
            return member

    return Member


def _iter_zip_members(archive: Path) -> Iterator[tuple[str, int, IO[bytes] | None]]:
    with zipfile.ZipFile(archive) as packed:
        for member in packed.infolist():
            kind = stat.S_IFMT(member.external_attr >> 16)
            if kind not in (0, stat.S_IFREG, stat.S_IFDIR):
                raise DataError(
                    f"the archive '{archive}' is refused: its member {member.filename!r} is a link or a device; "
                    "get the official one"
                )
            if member.is_dir():
                yield member.filename, 0, None
                continue
            with packed.open(member) as content:
                yield member.filename, member.file_size, content


def _check_parts(name: str, archive: Path) -> tuple[str, ...]:
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts or "\\" in name or ":" in name or "\0" in name:
        raise DataError(f"the archive '{archive}' is refused: its member {name!r} would land outside; get the official one")
    return path.parts


def _is_content_error(error: OSError) -> bool:
    """Return whether the archive's content is the cause.

    gzip and bz2 report a broken stream as an OSError without errno; a duplicate name is a
    FileExistsError, a name that is too long has an errno of its own.
    """
    return error.errno is None or error.errno in _NAME_ERRORS or isinstance(error, FileExistsError)


def _describe_error(error: Exception) -> str:
    if isinstance(error, FileExistsError):
        return f"it contains {Path(error.filename).name!r} twice"
    if isinstance(error, OSError) and error.errno is not None:
        return (error.strerror or type(error).__name__).lower()
    return first_line(error).rstrip(".")
