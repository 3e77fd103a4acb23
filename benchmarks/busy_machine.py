"""What other programs on the same cores cost: `caprompt run` alone, and beside ten processes that never rest.

    python benchmarks/busy_machine.py        # prints seconds and their ratio, writes results/speed/busy_machine.json

Every core is shared fairly, so that with P other processes on N cores a run on N threads gets N / (N + P) of them: it should take
about (N + P) / N times as long, and no more. PyTorch's threads wait for each other many times a second, and how they wait decides
it. Both ways are measured: asleep, as `caprompt` sets it, and spinning, which is PyTorch's default. A run that takes longer than
`--limit` times its time alone is ended, and counts as that.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from _common import SPEED, save

RUN = ("run", "--dataset", "digits", "--set", "per_class=10", "--set", "epochs=2", "--tasks", "2", "--device", "cpu")
POLICIES = {"asleep": "PASSIVE", "spinning": "ACTIVE"}


@contextmanager
def keep_busy(count: int) -> Iterator[None]:
    """Run so many processes that never rest within the context."""
    processes = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
    try:
        yield
    finally:
        for process in processes:
            process.kill()
            process.wait()


def time_run(policy: str, limit: float | None) -> float:
    """Return the seconds that a run takes, or the limit."""
    environment = {**os.environ, "OMP_WAIT_POLICY": policy}
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "caprompt", *RUN, "--out", str(Path(folder) / "run")]
        start = time.perf_counter()
        with suppress(subprocess.TimeoutExpired):
            subprocess.run(command, env=environment, check=True, capture_output=True, timeout=limit)
        return time.perf_counter() - start


def measure(policy: str) -> dict[str, Any]:
    """Measure a run alone and beside other processes."""
    alone = min(time_run(policy, None) for _ in range(args.rounds))
    with keep_busy(args.processes):
        beside = time_run(policy, args.limit * alone)
    return {"seconds_alone": alone, "seconds_beside": beside, "ratio": beside / alone, "ended": beside >= args.limit * alone}


def main() -> None:
    """Measure both ways of waiting, print, write."""
    cores = os.cpu_count() or 1
    result = {
        "cores": cores,
        "processes": args.processes,
        "in_proportion": (cores + args.processes) / cores,
        "waiting": {name: measure(policy) for name, policy in POLICIES.items()},
    }
    print(json.dumps(result, indent=1))
    save("busy_machine", result, args.out)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--processes", type=int, default=10)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--limit", type=float, default=30, help="times the time alone, after which a run is ended")
    parser.add_argument("--out", type=Path, default=SPEED)
    args = parser.parse_args()
    main()
