"""What other programs on the same cores cost: `caprompt run` alone, and beside processes that never rest, ten by default.

    python benchmarks/busy_machine.py        # prints seconds and their ratio, writes results/speed/busy_machine.json
    python benchmarks/busy_machine.py --demo # `make demo` instead of a small run, writes busy_demo.json

Every core is shared fairly, so that with P other processes on N cores a run on N threads gets N / (N + P) of them: it should take
about (N + P) / N times as long, and no more. Threads that wait for each other can sleep, as `caprompt` sets it, or spin
(`OMP_WAIT_POLICY=ACTIVE`); both are measured, the latter once. (Without a setting, GNU's OpenMP lets them spin for a while and then
sleep.) A run that takes longer than `--limit` times its time alone is ended, and counts as that. The controls are processes of one
thread, which wait for nothing; what they take beyond (1 + P) / N times their time alone, where P is at least N - 1, is due to the
machine. One counts, the other passes images through the network, whose weights it has to read again from memory whenever other
programs had the cores.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from _common import SPEED, print_table, save

SMALL_RUN = ("run", "--dataset", "digits", "--set", "per_class=10", "--set", "epochs=2", "--tasks", "2", "--device", "cpu")
DEMO = ("run", "--device", "cpu")  # what `make demo` runs
ASLEEP, SPINNING = "PASSIVE", "ACTIVE"
COUNTING = "for _ in range(150_000_000): pass"  # some seconds, as the other
COMPUTING = """
import torch
from caprompt.backbones.weights import DEFAULT_BACKBONE, load_backbone
torch.set_num_threads(1)
vit, images = load_backbone(DEFAULT_BACKBONE).build(), torch.zeros(8, 3, 64, 64)
with torch.no_grad():
    for _ in range(150):
        vit(images)
"""


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


def time_command(command: Sequence[str], policy: str, limit: float | None) -> float:
    """Return the seconds that a process takes, or the limit."""
    start = time.perf_counter()
    with suppress(subprocess.TimeoutExpired):
        subprocess.run(command, env={**os.environ, "OMP_WAIT_POLICY": policy}, check=True, capture_output=True, timeout=limit)
    return time.perf_counter() - start


def time_run(policy: str, limit: float | None) -> float:
    """Return the seconds that a run takes, or the limit."""
    with tempfile.TemporaryDirectory() as folder:
        words = DEMO if args.demo else SMALL_RUN
        return time_command([sys.executable, "-m", "caprompt", *words, "--out", str(Path(folder) / "run")], policy, limit)


def time_counting(policy: str, limit: float | None) -> float:
    """Return the seconds that a process of one thread takes to count."""
    return time_command([sys.executable, "-c", COUNTING], policy, limit)


def time_computing(policy: str, limit: float | None) -> float:
    """Return the seconds that a process of one thread takes for the features of images."""
    return time_command([sys.executable, "-c", COMPUTING], policy, limit)


def measure(time_one: Callable[[str, float | None], float], policy: str, rounds: int) -> dict[str, Any]:
    """Measure a process alone and beside others in turn; medians."""
    alone, beside = [], []
    for _ in range(rounds):
        alone.append(time_one(policy, None))
        with keep_busy(args.processes):
            beside.append(time_one(policy, args.limit * alone[-1]))
        print(f"{time_one.__name__.removeprefix('time_')}: {alone[-1]:.1f} s alone, {beside[-1]:.1f} s beside", flush=True)
    ended = any(each >= args.limit * own for own, each in zip(alone, beside, strict=True))
    usual, longer = statistics.median(alone), statistics.median(beside)
    ratios = [each / own for own, each in zip(alone, beside, strict=True)]
    return {"seconds_alone": usual, "seconds_beside": longer, "ratio": longer / usual, "ratios_of_rounds": ratios, "ended": ended}


def main() -> None:
    """Measure both ways of waiting and the controls, print, write."""
    cores = len(os.sched_getaffinity(0))
    waiting = {"asleep": measure(time_run, ASLEEP, args.rounds)}
    if not args.demo:
        waiting["spinning"] = measure(time_run, SPINNING, 1)
    result = {
        "cores": cores,
        "processes": args.processes,
        "rounds": args.rounds,
        "in_proportion": (cores + args.processes) / cores,
        "in_proportion_one_thread": max(1.0, (1 + args.processes) / cores),
        "waiting": waiting,
        "controls": {
            "counting": measure(time_counting, ASLEEP, args.rounds),
            "computing": measure(time_computing, ASLEEP, args.rounds),
        },
    }
    print_table("busy_machine", result)
    save(args.name or ("busy_demo" if args.demo else "busy_machine"), result, args.out)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--demo", action="store_true", help="`make demo` instead of a small run, asleep only")
    parser.add_argument("--processes", type=int, default=10)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--limit", type=float, default=30, help="times the time alone, after which a run is ended")
    parser.add_argument("--out", type=Path, default=SPEED)
    parser.add_argument("--name", help="of the file with the result, such as busy_demo_8 on eight cores")
    args = parser.parse_args()
    main()
