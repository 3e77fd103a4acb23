"""Model folders on disk."""

from __future__ import annotations

from caprompt.checkpoint.folder import (
    CONFIG,
    FORMAT,
    STATE,
    Saved,
    commit,
    discard,
    exists,
    read,
    read_config,
    write,
    write_bytes,
    write_json,
)

__all__ = [
    "CONFIG",
    "FORMAT",
    "STATE",
    "Saved",
    "commit",
    "discard",
    "exists",
    "read",
    "read_config",
    "write",
    "write_bytes",
    "write_json",
]
