"""Atomic writes, and reading of JSON, TOML and hashes."""

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
    "current_path",
    "encode_json",
    "finish_commit",
    "first_line",
    "read_json",
    "read_toml",
    "sha256_of",
    "write_bytes",
    "write_json",
]


def commit(folder: Path, files: Mapping[str, bytes]) -> None:
    """Replace files of a folder together: after a kill, all of them are the old ones or all are the new ones."""
    folder.mkdir(parents=True, exist_ok=True)
    finish_commit(folder)
    draft = folder / ".next"
    shutil.rmtree(draft, ignore_errors=True)
    draft.mkdir()
    for name, content in files.items():
        _write_and_sync(draft / name, content)
    draft.rename(folder / ".ready")
    finish_commit(folder)


def write_json(path: Path, value: Any) -> None:
    """Replace one JSON file atomically."""
    write_bytes(path, encode_json(value))


def write_bytes(path: Path, content: bytes) -> None:
    """Replace one file atomically."""
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name}.next")
    _write_and_sync(draft, content)
    draft.replace(path)


def finish_commit(folder: Path) -> None:
    """Complete a commit that was interrupted between becoming valid and being moved into place."""
    ready = folder / ".ready"
    if ready.is_dir():
        for path in sorted(ready.iterdir()):
            path.replace(folder / path.name)
        ready.rmdir()


def current_path(folder: Path, name: str) -> Path:
    """Return where the current version of a file is, also in the middle of a commit."""
    ready = folder / ".ready" / name
    return ready if ready.is_file() else folder / name


def _write_and_sync(path: Path, content: bytes) -> None:
    with path.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def encode_json(value: Any) -> bytes:
    """Encode a value as indented JSON."""
    return (json.dumps(value, indent=2, ensure_ascii=False) + "\n").encode()


def sha256_of(path: Path) -> str:
    """The SHA-256 of a file, in hex."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object, or an empty one where there is no file."""
    if not path.is_file():
        return {}
    try:
        found = json.loads(path.read_text())
    except ValueError as error:
        raise InputError(f"'{path}' is not JSON: {error}") from error
    return found if isinstance(found, dict) else {}


def first_line(error: Exception) -> str:
    """The beginning of an error of someone else's."""
    return str(error).strip().partition("\n")[0] or type(error).__name__


def read_toml(path: Path) -> dict[str, Any]:
    """A flat TOML file of settings."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"the configuration file '{path}' cannot be read: {error}") from error
    except tomllib.TOMLDecodeError as error:
        raise InputError(f"'{path}' is not valid TOML: {error}") from error
