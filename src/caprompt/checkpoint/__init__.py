"""Model folders on disk: the file format (`folder`), and saved options, backbones and stopped calls (`model`)."""

from __future__ import annotations

from caprompt.checkpoint.folder import CONFIG, FORMAT, STATE, Saved, discard, exists, read, read_config, write

__all__ = ["CONFIG", "FORMAT", "STATE", "Saved", "discard", "exists", "read", "read_config", "write"]
