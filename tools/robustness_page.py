"""Write the table of results/robustness.json into docs/robustness.md, between `<!-- robustness -->` and `<!-- end -->`.

python tools/robustness_page.py                 # after `make robust`; without new results nothing changes
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
RESULTS, PAGE = ROOT / "results" / "robustness.json", ROOT / "docs" / "robustness.md"
COUNTS = ("tries", "refused", "accepted", "crashed", "lost", "hung")


def format_result(result: dict[str, Any]) -> str:
    """Return the table, a line of sums, and the conditions.

    >>> row = {"title": "images", "tries": 1200, "refused": 1000, "accepted": 200, "crashed": 0, "lost": 0, "hung": 0, "memory": 0}
    >>> row |= {"longest_seconds": 0.5, "peak_bytes": 10**8, "date": "2026-11-16", "commit": None, "seed": 17, "seconds": 120}
    >>> environment = {"caprompt": "0.1.0", "python": "3.11.7", "torch": "2.13", "numpy": "2.2", "pillow": "13.0"}
    >>> lines = format_result({"environment": environment, "rows": [row]}).splitlines()
    >>> lines[2]
    '| images | 1,200 | 1,000 | 200 | 0 | 0 | 0 | 0 | 0.5 s | 100 MB |'
    >>> lines[-1].partition(";")[0]
    '2026-11-16, commit unknown, seed 17, 2 minutes if one attack is run after another'
    """
    heads = ["attack", "tries", "refused with one sentence", *COUNTS[2:], "over 2 GB", "longest", "memory"]
    rows = [_format_row(row["title"], row) for row in result["rows"]]
    total: dict[str, Any] = {name: sum(row[name] for row in result["rows"]) for name in (*COUNTS, "memory")}
    total |= {name: max(row[name] for row in result["rows"]) for name in ("longest_seconds", "peak_bytes")}
    lines = [heads, ["---", *["--:"] * (len(heads) - 1)], *rows, _format_row("all", total)]
    versions = ", ".join(f"{name} {version}" for name, version in _list_versions(result["environment"]))
    return "\n".join(f"| {' | '.join(line)} |" for line in lines) + f"\n\n{_format_origin(result['rows'])}; {versions}."


def _format_origin(rows: list[dict[str, Any]]) -> str:
    """Return when, of which commits and with which seeds the rows were measured."""
    dates, seeds = sorted({row["date"] for row in rows}), sorted({row["seed"] for row in rows})
    commits = sorted({_shorten(row["commit"]) for row in rows})
    minutes = sum(row["seconds"] for row in rows) / 60
    parts = [", ".join(dates), f"commit {', '.join(commits)}", f"seed {', '.join(map(str, seeds))}"]
    return ", ".join([*parts, f"{minutes:.0f} minutes if one attack is run after another"])


def _shorten(commit: str | None) -> str:
    """Return the start of a commit, with the mark of a checkout that was changed.

    >>> _shorten("0123456789abcdef0123-dirty"), _shorten(None)
    ('0123456789ab-dirty', 'unknown')
    """
    return f"{commit[:12]}{'-dirty' * commit.endswith('-dirty')}" if commit else "unknown"


def _format_row(title: str, row: dict[str, Any]) -> list[str]:
    counts = [f"{row[name]:,}" for name in (*COUNTS, "memory")]
    return [title, *counts, f"{row['longest_seconds']:.1f} s", f"{row['peak_bytes'] / 1e6:,.0f} MB"]


def _list_versions(environment: dict[str, str]) -> list[tuple[str, str]]:
    names = {"caprompt": "caprompt", "python": "Python", "torch": "torch", "numpy": "numpy", "pillow": "Pillow"}
    return [(shown, environment[name]) for name, shown in names.items()]


def fill_page(text: str, results: Path = RESULTS) -> str:
    """Return the page with the table of the file."""
    table = format_result(json.loads(results.read_text(encoding="utf-8"))) if results.is_file() else "Not measured yet."
    return re.sub(
        r"<!-- robustness -->\n.*?<!-- end -->", lambda _: f"<!-- robustness -->\n{table}\n<!-- end -->", text, flags=re.DOTALL
    )


if __name__ == "__main__":
    PAGE.write_text(fill_page(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
    print(f"saved {PAGE}")
