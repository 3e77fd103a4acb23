"""Checks that every method must pass, for use in the tests of any package."""

from __future__ import annotations
