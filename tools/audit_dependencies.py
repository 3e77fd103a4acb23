"""Look up known vulnerabilities of every pinned dependency (constraints.txt) with pip-audit.

    python tools/audit_dependencies.py                        # PyPI's advisories
    python tools/audit_dependencies.py --vulnerability-service osv

A finding is either fixed by another pin or answered in tools/audit-answers.txt. A package that could not be looked up is an error:
an audit that saw nothing must not count as a clean one.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


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


def main() -> int:
    """Run pip-audit of the environment of this Python; return its status."""
    answers = read_answers((ROOT / "tools" / "audit-answers.txt").read_text(encoding="utf-8"))
    words = [sys.executable, "-m", "pip_audit", "--strict", "--no-deps", "--disable-pip", "--progress-spinner", "off"]
    words += ["--requirement", str(ROOT / "constraints.txt"), *sys.argv[1:]]
    for identifier, reason in answers.items():
        print(f"{identifier} is answered: {reason}")
        words += ["--ignore-vuln", identifier]
    return subprocess.run(words, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
