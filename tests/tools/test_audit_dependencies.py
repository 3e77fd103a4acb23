"""tools/audit_dependencies.py: findings and packages that were not looked up fail, and say so in a sentence."""

from __future__ import annotations

import doctest
import runpy
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from helpers import ROOT

SCRIPT = ROOT / "tools" / "audit_dependencies.py"
CLEAN = {"name": "rich", "version": "15.0.0", "vulns": []}
FOUND = {
    "name": "pillow",
    "version": "9.0",
    "vulns": [{"id": "PYSEC-1", "fix_versions": ["9.1"]}, {"id": "GHSA-2", "fix_versions": []}],
}
SKIPPED = {"name": "absl-py", "skip_reason": "Dependency not found on PyPI and could not be audited: absl-py (2.5.1)"}


@pytest.fixture(scope="module")
def tool() -> SimpleNamespace:
    return SimpleNamespace(**runpy.run_path(str(SCRIPT)))


def test_findings_are_listed(tool: SimpleNamespace) -> None:
    assert tool.judge({"dependencies": [CLEAN]})[0] == 0
    status, lines = tool.judge({"dependencies": [CLEAN, FOUND]})
    assert status == 1
    assert lines[:2] == ["pillow 9.0: PYSEC-1, fixed in 9.1", "pillow 9.0: GHSA-2, fixed in no version yet"]


def test_packages_that_were_not_looked_up_are_no_clean_audit(tool: SimpleNamespace) -> None:
    status, lines = tool.judge({"dependencies": [CLEAN, SKIPPED]})
    assert status == 2
    assert len(lines) == 1
    assert "1 of 2 packages (absl-py) could not be looked up" in lines[0]
    status, lines = tool.judge({"dependencies": [FOUND, *[SKIPPED] * 9]})
    assert (status, len(lines)) == (2, 3)


def test_an_error_of_pip_audit_is_one_sentence(tmp_path: Path) -> None:
    """Without a connection pip-audit ends with a traceback, as this one in its place does."""
    (tmp_path / "pip_audit.py").write_text("raise ConnectionError('no route to host')")
    ended = subprocess.run(
        [sys.executable, SCRIPT], env={"PYTHONPATH": str(tmp_path)}, capture_output=True, text=True, check=False, timeout=60
    )
    assert (ended.returncode, ended.stdout) == (2, "")
    assert ended.stderr.count("\n") == 1
    assert ended.stderr.startswith("this is no complete audit, as pip-audit has failed (ConnectionError: no route to host)")


def test_answers_to_findings_need_a_reason(tool: SimpleNamespace) -> None:
    tool.read_answers((ROOT / "tools" / "audit-answers.txt").read_text(encoding="utf-8"))
    assert tool.read_answers("# all of them\n\nGHSA-1  only on Windows\n") == {"GHSA-1": "only on Windows"}
    with pytest.raises(ValueError, match="GHSA-2 has no reason"):
        tool.read_answers("GHSA-2 \n")


def test_doctests() -> None:
    sys.path.insert(0, str(ROOT / "tools"))
    try:
        import audit_dependencies
    finally:
        sys.path.pop(0)
    assert doctest.testmod(audit_dependencies).attempted
    assert doctest.testmod(audit_dependencies).failed == 0
