from __future__ import annotations

import subprocess
from datetime import datetime
from pathlib import Path

from caprompt.experiments.provenance import describe_provenance, find_commit


def run_git(directory: Path, *arguments: str) -> str:
    identity = ["-c", "user.name=a", "-c", "user.email=a@b.c"]
    process = subprocess.run(["git", "-C", str(directory), *identity, *arguments], capture_output=True, text=True, check=True)
    return process.stdout.strip()


def test_find_commit(tmp_path: Path) -> None:
    assert find_commit(tmp_path) is None
    run_git(tmp_path, "init")
    assert find_commit(tmp_path) is None  # no commit yet
    (tmp_path / "a").write_text("1")
    run_git(tmp_path, "add", "a")
    run_git(tmp_path, "commit", "-m", "one")
    run_git(tmp_path, "tag", "-a", "v1", "-m", "v1")
    commit = run_git(tmp_path, "rev-parse", "HEAD")
    assert find_commit(tmp_path) == commit
    (tmp_path / "a").write_text("2")
    assert find_commit(tmp_path) == f"{commit}-dirty"


def test_date_has_a_time_zone() -> None:
    date = describe_provenance()["date"]
    assert date is not None
    assert datetime.fromisoformat(date).tzinfo is not None
