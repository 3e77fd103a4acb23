"""Look up known vulnerabilities of every pinned dependency (constraints.txt) with pip-audit.

    python tools/audit_dependencies.py                        # PyPI's advisories
    python tools/audit_dependencies.py --vulnerability-service osv

A finding is either fixed by another pin or answered in tools/audit-answers.txt. A package that could not be looked up is an error:
an audit that saw nothing must not count as a clean one.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
NO_AUDIT = "this is no complete audit"
REMEDY = "repeat it where the service can be reached, or ask another one (--vulnerability-service pypi, osv or esms)"


def read_answers(text: str) -> dict[str, str]:
    """Return the reason by identifier; a finding without a reason is refused.

    >>> read_answers("# comment\\nGHSA-1 only on Windows\\n")
    {'GHSA-1': 'only on Windows'}
    >>> read_answers("GHSA-1\\n")
    Traceback (most recent call last):
    ValueError: GHSA-1 has no reason; write why it does not concern users of caprompt behind it
    """
    answers = {}
    for line in text.splitlines():
        identifier, _, reason = line.strip().partition(" ")
        if identifier and not identifier.startswith("#"):
            if not reason.strip():
                raise ValueError(f"{identifier} has no reason; write why it does not concern users of caprompt behind it")
            answers[identifier] = reason.strip()
    return answers


def judge(document: Mapping[str, Any]) -> tuple[int, list[str]]:
    """Return the exit status and the lines to print for a document of pip-audit: 1 for findings, 2 for packages that it skipped.

    >>> judge({"dependencies": [{"name": "rich", "version": "15.0.0", "vulns": []}]})
    (0, ['no known vulnerabilities in 1 packages'])
    """
    packages = document["dependencies"]
    findings = [
        f"{package['name']} {package['version']}: {found['id']}, fixed in {', '.join(found['fix_versions']) or 'no version yet'}"
        for package in packages
        for found in package.get("vulns", ())
    ]
    skipped = [package["name"] for package in packages if "skip_reason" in package]
    if skipped:
        names = ", ".join(skipped[:3]) + (", ..." if len(skipped) > 3 else "")
        return 2, [
            *findings,
            f"{NO_AUDIT}, as {len(skipped)} of {len(packages)} packages ({names}) could not be looked up; {REMEDY}",
        ]
    if findings:
        return 1, [*findings, "fix each by another pin in constraints.txt, or answer it in tools/audit-answers.txt"]
    return 0, [f"no known vulnerabilities in {len(packages)} packages"]


def main() -> int:
    """Run pip-audit of the pinned versions for this Python; return the status."""
    answers = read_answers((ROOT / "tools" / "audit-answers.txt").read_text(encoding="utf-8"))
    words = [sys.executable, "-m", "pip_audit", "--format", "json", "--no-deps", "--disable-pip", "--progress-spinner", "off"]
    words += ["--requirement", str(ROOT / "constraints.txt"), *sys.argv[1:]]
    for identifier, reason in answers.items():
        print(f"{identifier} is answered: {reason}")
        words += ["--ignore-vuln", identifier]
    audit = subprocess.run(words, capture_output=True, text=True, check=False)
    try:
        status, lines = judge(json.loads(audit.stdout))
    except json.JSONDecodeError:  # pip-audit has ended with an error, most often of the connection
        reason = (audit.stderr.strip().splitlines() or ["it says nothing"])[-1]
        status, lines = 2, [f"{NO_AUDIT}, as pip-audit has failed ({reason}); {REMEDY}"]
    print(*lines, sep="\n", file=sys.stderr if status else sys.stdout)
    return status


if __name__ == "__main__":
    sys.exit(main())
