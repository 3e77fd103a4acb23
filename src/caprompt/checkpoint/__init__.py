"""Model folders: their files (`folder`), their lock (`lock`), and saved options, backbones and stopped calls (`model`)."""

from __future__ import annotations

from caprompt.checkpoint.folder import (
    CONFIG,
    EVALUATION,
    FORMAT,
    STATE,
    VERSIONS,
    Saved,
    discard,
    exists,
    list_files,
    list_versions,
    read,
    read_config,
    read_evaluation,
    read_identity,
    revert,
    visit_files,
    write,
)
from caprompt.checkpoint.lock import lock_folder

__all__ = [
    "CONFIG",
    "EVALUATION",
    "FORMAT",
    "STATE",
    "VERSIONS",
    "Saved",
    "discard",
    "exists",
    "list_files",
    "list_versions",
    "lock_folder",
    "read",
    "read_config",
    "read_evaluation",
    "read_identity",
    "revert",
    "visit_files",
    "write",
]
