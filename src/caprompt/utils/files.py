"""Atomic writes, JSON and TOML reading, and file hashes.

Every file is written under a temporary name, synced to disk and then renamed into place, so that
after a kill or a power loss it has either its old or its new content. `commit` does so for several
files of a directory at once: they are written to `.next/`, which is then renamed to `.ready/` (from
that rename on the new files count) and moved into place one by one. A reader takes each file from
`.ready/` while it is still there (`get_current_path`); a writer that finds a `.ready/` finishes that
commit first.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from caprompt.errors import InputError

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

__all__ = [
    "commit",
    "compute_sha256",
    "encode_json",
    "finish_commit",
    "get_current_path",
    "read_json",
    "read_toml",
    "write_bytes",
    "write_json",
]


def commit(folder: Path, files: Mapping[str, bytes]) -> None:
    """Replace files of a folder together: after a kill, all are old or all are new."""
    folder.mkdir(parents=True, exist_ok=True)
    finish_commit(folder)
    draft = folder / ".next"
    shutil.rmtree(draft, ignore_errors=True)
    draft.mkdir()
    for name, content in files.items():
        _write_and_sync(draft / name, content)
    draft.rename(folder / ".ready")
    finish_commit(folder)


def finish_commit(folder: Path) -> None:
    """Complete a commit that was interrupted between becoming valid and being moved into place."""
    ready = folder / ".ready"
    if ready.is_dir():
        for path in sorted(ready.iterdir()):
            path.replace(folder / path.name)
        ready.rmdir()


def get_current_path(folder: Path, name: str) -> Path:
    """Return where the current version of a file is, also in the middle of a commit."""
    ready = folder / ".ready" / name
    return ready if ready.is_file() else folder / name


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
    """Encode a value as indented JSON."""
    return (json.dumps(value, indent=2, ensure_ascii=False) + "\n").encode()


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
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def _write_and_sync(path: Path, content: bytes) -> None:
    with path.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
