"""Atomic writes, JSON and TOML reading, and file hashes.

Every file is written under a temporary name, synced to disk and then renamed into place, so that
after a kill or a power loss it has either its old or its new content. `commit` does so for several
files of a directory at once: they are written to a draft, `.next-.../`, which is then renamed to
`.ready/` (from that rename on the new files count) and moved into place one by one. A reader takes
each file from `.ready/` while it is still there (`get_current_path`); a writer that finds a
`.ready/` finishes that commit first. Two writers at once are the caller's to prevent.
"""

from __future__ import annotations

import hashlib
import json
import os
import secrets
import shutil
import sys
from collections.abc import Iterable, Mapping
from contextlib import nullcontext, suppress
from pathlib import Path
from types import MappingProxyType
from typing import Any

from caprompt.errors import InputError

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

__all__ = [
    "DRAFT_PREFIX",
    "READY",
    "check_no_link",
    "commit",
    "compute_sha256",
    "encode_json",
    "finish_commit",
    "get_current_path",
    "read_json",
    "read_toml",
    "remove_drafts",
    "remove_path",
    "write_bytes",
    "write_json",
]

DRAFT_PREFIX = ".next"  # of the directory in which a commit is prepared
READY = ".ready"  # the directory of a commit that counts, and is being moved into place
REMOVALS = ".remove"  # file of a commit: the names that it deletes
_NO_LINKS: Mapping[str, Path] = MappingProxyType({})


def commit(
    folder: Path,
    files: Mapping[str, bytes],
    *,
    links: Mapping[str, Path] = _NO_LINKS,
    remove: Iterable[str] = (),
    may_finish_later: bool = False,
) -> None:
    """Change files of a folder together: after a kill, all changes are made or none is.

    Names may contain slashes. `files` are written, `links` become further names of existing files, and `remove` are deleted.
    If all readers use `get_current_path`, the files `may_finish_later`: once they count, a disk that fails is no error.
    """
    folder.mkdir(parents=True, exist_ok=True)
    finish_commit(folder)
    remove_drafts(folder)
    draft = folder / f"{DRAFT_PREFIX}-{os.getpid()}-{secrets.token_hex(4)}"
    try:
        draft.mkdir()
        for name, content in files.items():
            _write_and_sync(_make_parent(draft / name), content)
        for name, source in links.items():
            _link_or_copy(source, _make_parent(draft / name))
        _write_and_sync(draft / REMOVALS, encode_json(list(remove)))
        draft.rename(folder / READY)
    except OSError:  # such as a full disk
        shutil.rmtree(draft, ignore_errors=True)
        raise
    with suppress(OSError) if may_finish_later else nullcontext():  # the next writer moves them into place
        finish_commit(folder)


def finish_commit(folder: Path) -> None:
    """Complete a commit that was interrupted between becoming valid and being moved into place."""
    ready = folder / READY
    check_no_link(ready)
    if not ready.is_dir():
        return
    for path in sorted(path for path in ready.rglob("*") if path.is_file() and path.name != REMOVALS):
        target = _make_parent(folder / path.relative_to(ready))
        path.replace(target)
    for name in _read_removals(folder):
        remove_path(folder / name)
    shutil.rmtree(ready)


def get_current_path(folder: Path, name: str) -> Path:
    """Return where the current version of a file is or would be, also in the middle of a commit."""
    ready = folder / READY / name
    return ready if ready.is_file() or name in _read_removals(folder) else folder / name


def remove_drafts(folder: Path) -> None:
    """Delete what killed writers have left; call this only where no other writer can be at work."""
    for path in folder.glob(f"{DRAFT_PREFIX}*"):
        remove_path(path)


def remove_path(path: Path) -> None:
    """Delete a file, a directory or a link, but never what a link points to."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def check_no_link(path: Path) -> None:
    """Refuse a symbolic link where this package writes: what it points to may be anything."""
    if path.is_symlink():
        raise InputError(f"'{path}' is a symbolic link, which caprompt never makes there; remove it")


def _read_removals(folder: Path) -> list[str]:
    """Return the names that an unfinished commit deletes; refuse those outside, which a folder from elsewhere may have."""
    path = folder / READY / REMOVALS
    try:
        names = json.loads(path.read_bytes())
    except (FileNotFoundError, NotADirectoryError):
        return []
    except (UnicodeDecodeError, json.JSONDecodeError, RecursionError):
        names = None
    if not isinstance(names, list) or not all(isinstance(name, str) and _is_inside(name) for name in names):
        raise InputError(f"'{path}' is damaged; restore the folder from a backup")
    return names


def _is_inside(name: str) -> bool:
    """Return whether a name leads to something below the folder that it is in.

    >>> _is_inside("versions/0"), _is_inside("../x"), _is_inside("/etc"), _is_inside("."), _is_inside("a\\0b")
    (True, False, False, False, False)
    """
    path = Path(name)
    return bool(path.parts) and not path.anchor and ".." not in path.parts and "\0" not in name


def _make_parent(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    return path


def _link_or_copy(source: Path, target: Path) -> None:
    """Give a file a second name, which costs no space; where the file system cannot do that, copy it."""
    try:
        os.link(source, target)
    except OSError:
        _write_and_sync(target, source.read_bytes())


def write_bytes(path: Path, content: bytes) -> None:
    """Replace one file atomically."""
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name}.next")
    try:
        _write_and_sync(draft, content)
    except OSError:  # such as a full disk
        draft.unlink(missing_ok=True)
        raise
    draft.replace(path)


def write_json(path: Path, value: Any) -> None:
    """Replace one JSON file atomically."""
    write_bytes(path, encode_json(value))


def encode_json(value: Any) -> bytes:
    """Encode a value as indented JSON; bytes of a file name that are not UTF-8 become escapes, which Python decodes again."""
    return (json.dumps(value, indent=2, ensure_ascii=False) + "\n").encode(errors="backslashreplace")


def read_json(path: Path) -> dict[str, Any]:
    """Read a JSON object; a missing file reads as an empty one."""
    if not path.is_file():
        return {}
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise InputError(f"'{path}' is not JSON: {error}") from error
    if not isinstance(value, dict):
        raise InputError(f"'{path}' is not a JSON object but a {type(value).__name__}")
    return value


def read_toml(path: Path) -> dict[str, Any]:
    """Read a TOML file."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"the configuration file '{path}' cannot be read: {error}") from error
    except tomllib.TOMLDecodeError as error:
        raise InputError(f"'{path}' is not valid TOML: {error}") from error


def compute_sha256(path: Path) -> str:
    """Return the SHA-256 of a file, in hex."""
    digest = hashlib.sha256()
    with path.open("rb", buffering=0) as file:
        size = min(os.fstat(file.fileno()).st_size + 1, 1 << 20)  # a small file is read at once
        while block := file.read(size):
            digest.update(block)
    return digest.hexdigest()


def _write_and_sync(path: Path, content: bytes) -> None:
    try:
        with path.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:  # that of a full disk names no file
        raise OSError(error.errno, error.strerror, str(path.parent)) from error
