"""`python -m robust`: run attacks, print the table, and write it to results/robustness.json."""

from __future__ import annotations

import argparse
import json
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import date
from pathlib import Path
from typing import Any

from robust.attack import GOOD, OUTCOMES
from robust.registry import NAMES, get_attack
from robust.supervisor import CASES, Tally, run_attack
from robust.worker import run_once

RESULTS = Path(__file__).resolve().parents[2] / "results" / "robustness.json"
SEED = 17


def main() -> int:
    """Run what the arguments say; return 1 if a try has failed."""
    parser = argparse.ArgumentParser(prog="python -m robust", description="Attack the package in many ways.")
    parser.add_argument("--kind", action="append", choices=NAMES, help="a kind of attack; all without it")
    parser.add_argument("--seed", type=int, default=SEED)
    parser.add_argument("--tries", type=int, help="number of tries of each kind")
    parser.add_argument("--short", action="store_true", help="the numbers of the short form")
    parser.add_argument("--only", type=int, help="a single try, in this process")
    parser.add_argument("--jobs", type=int, default=2, help="kinds at the same time")
    parser.add_argument("--save", action="store_true", help="write results/robustness.json")
    arguments = parser.parse_args()
    names = arguments.kind or list(NAMES)
    if arguments.only is not None:
        result = run_once(get_attack(names[0]), arguments.seed, arguments.only)
        print(*(f"{key}: {value}" for key, value in result.items()), sep="\n")
        return result["outcome"] not in GOOD

    start_time = time.monotonic()

    def run(name: str) -> Tally:
        attack = get_attack(name)
        count = arguments.tries or (attack.sample if arguments.short else attack.tries)
        began = time.monotonic()
        tally = run_attack(name, arguments.seed, count, report=lambda result: print_failure(name, result))
        tally.total_seconds = time.monotonic() - began
        print(f"{name}: {tally.tries} tries in {tally.total_seconds:.0f} s, {dict(tally.counts)}", flush=True)
        return tally

    with ThreadPoolExecutor(arguments.jobs) as pool:
        slow_first = sorted(names, key=lambda name: -get_attack(name).limit)
        futures = {name: pool.submit(run, name) for name in slow_first}
        tallies = [futures[name].result() for name in names]
    rows = [tally.as_row() for tally in tallies]
    print(f"\nseed {arguments.seed}, {time.monotonic() - start_time:.0f} s\n\n{format_rows(rows)}")
    if arguments.save:
        save(rows)
    failed = sum(len(tally.failures) for tally in tallies)
    if failed:
        print(f"\n{failed} tries failed; their material is in {CASES}")
    return failed > 0


def print_failure(name: str, result: dict[str, Any]) -> None:
    """Print a try that went wrong, as soon as it is known."""
    if result["outcome"] not in GOOD:
        print(f"\n{name} {result['number']}: {result['outcome']}: {result['description']}\n{result['message']}", flush=True)


def format_rows(rows: list[dict[str, Any]]) -> str:
    """Return the table as plain text."""
    heads = ("kind", "tries", *OUTCOMES, "longest, s", "peak, MB")
    cells = [
        (
            row["kind"],
            *(str(row[name]) for name in ("tries", *OUTCOMES)),
            str(row["longest_seconds"]),
            str(row["peak_bytes"] // 10**6),
        )
        for row in rows
    ]
    widths = [max(map(len, column)) for column in zip(heads, *cells, strict=True)]
    lines = [
        [
            text.ljust(width) if not index else text.rjust(width)
            for index, (text, width) in enumerate(zip(line, widths, strict=True))
        ]
        for line in (heads, *cells)
    ]
    return "\n".join("  ".join(line) for line in lines)


def save(rows: list[dict[str, Any]]) -> None:
    """Write the rows with their commit, date, machine and versions; of kinds that were not run now, earlier rows stay."""
    import PIL
    import torch

    from caprompt.experiments.provenance import find_commit
    from caprompt.experiments.run_folder import describe_environment

    now = {"commit": find_commit(), "date": date.today().isoformat()}
    environment = {**describe_environment(torch.device("cpu")), "pillow": PIL.__version__}
    earlier = json.loads(RESULTS.read_text(encoding="utf-8"))["rows"] if RESULTS.is_file() else []
    by_kind = {row["kind"]: row for row in [*earlier, *({**row, **now} for row in rows)]}
    document = {**now, "environment": environment, "data_sha256": {}, "rows": [by_kind[name] for name in NAMES if name in by_kind]}
    RESULTS.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
