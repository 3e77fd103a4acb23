"""Command line: parse arguments, call the library, print results."""

from __future__ import annotations
