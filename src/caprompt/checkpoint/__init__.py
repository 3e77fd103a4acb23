"""Model folders on disk: their format (`folder`), and what a saved model and a stopped call mean (`model`)."""

from __future__ import annotations

from caprompt.checkpoint.folder import CONFIG, FORMAT, STATE, Saved, discard, exists, read, read_config, write

__all__ = ["CONFIG", "FORMAT", "STATE", "Saved", "discard", "exists", "read", "read_config", "write"]
