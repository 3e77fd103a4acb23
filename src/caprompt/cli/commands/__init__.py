"""The commands, one file each; every name in the `__all__` of a file here is a command."""

from __future__ import annotations
