"""Data sets known by name, one file each."""

from __future__ import annotations
