"""The command line: parse, call the library, print."""

from __future__ import annotations
