"""Provenance of a result: the commit of the caprompt checkout that produced it, and the date."""

from __future__ import annotations

import subprocess
from datetime import datetime, timezone
from pathlib import Path

__all__ = ["PROVENANCE", "describe_provenance", "find_commit"]

PROVENANCE = "provenance.json"  # in the folder of a finished cell
CHECKOUT = Path(__file__).resolve().parents[3]


def find_commit(checkout: Path = CHECKOUT) -> str | None:
    """Return the commit of a checkout, with "-dirty" behind it where tracked files differ; None for an installed package."""
    if not (checkout / ".git").exists():
        return None
    command = ["git", "-C", str(checkout), "describe", "--always", "--abbrev=40", "--dirty", "--exclude=*"]
    try:
        completed = subprocess.run(command, capture_output=True, text=True, timeout=30, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return completed.stdout.strip() or None


def describe_provenance() -> dict[str, str | None]:
    """Return the commit and the current date and time in UTC."""
    return {"commit": find_commit(), "date": datetime.now(timezone.utc).isoformat(timespec="seconds")}
