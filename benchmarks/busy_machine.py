"""What other programs on the same cores cost: `caprompt run` alone, and beside processes that never rest, ten by default.

    python benchmarks/busy_machine.py        # prints seconds and their ratio, writes results/speed/busy_machine.json
    python benchmarks/busy_machine.py --demo # `make demo` instead of a small run, writes busy_demo.json

Every core is shared fairly, so that with P other processes on N cores a run on N threads gets N / (N + P) of them: it should take
about (N + P) / N times as long, and no more. Threads that wait for each other can sleep, as `caprompt` sets it, or spin
(`OMP_WAIT_POLICY=ACTIVE`); both are measured, the latter once. (Without a setting, GNU's OpenMP lets them spin for a while and then
sleep.) A run that takes longer than `--limit` times its time alone is ended, and counts as that. The controls are processes of one
thread, which wait for nothing, measured in the same rounds. One counts; one passes images through the network, whose weights it has
to read again from memory whenever other programs had the cores; and N of the latter at once, until the last of them is done, show
what the machine gives to N threads that never wait for each other. What a single one takes beyond (1 + P) / N times its time alone,
where P is at least N - 1, or N at once beyond (N + P) / N, is due to the machine.
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
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from _common import SPEED, print_table, save

SMALL_RUN = ("run", "--dataset", "digits", "--set", "per_class=10", "--set", "epochs=2", "--tasks", "2", "--device", "cpu")
DEMO = ("run", "--device", "cpu")  # what `make demo` runs
ASLEEP, SPINNING = "PASSIVE", "ACTIVE"
COUNTING = "for _ in range(50_000_000): pass"  # about a second, computing takes some
COMPUTING = """
import torch
from caprompt.backbones.weights import DEFAULT_BACKBONE, load_backbone
torch.set_num_threads(1)
vit, images = load_backbone(DEFAULT_BACKBONE).build(), torch.zeros(8, 3, 64, 64)
with torch.no_grad():
    for _ in range(80):
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


def time_commands(commands: Sequence[Sequence[str]], policy: str, limit: float | None) -> float:
    """Return the seconds until the last of some processes that start together ends, or the limit."""
    start = time.perf_counter()
    processes = [
        subprocess.Popen(command, env={**os.environ, "OMP_WAIT_POLICY": policy}, stdout=subprocess.DEVNULL) for command in commands
    ]
    try:
        for process in processes:
            if process.wait(None if limit is None else max(0.0, start + limit - time.perf_counter())) != 0:
                raise subprocess.CalledProcessError(process.returncode, process.args)
    except subprocess.TimeoutExpired:
        pass
    finally:
        for process in processes:
            process.kill()
            process.wait()
    return time.perf_counter() - start


def time_run(policy: str, limit: float | None) -> float:
    """Return the seconds that a run takes, or the limit."""
    with tempfile.TemporaryDirectory() as folder:
        words = DEMO if args.demo else SMALL_RUN
        return time_commands([[sys.executable, "-m", "caprompt", *words, "--out", str(Path(folder) / "run")]], policy, limit)


def time_control(code: str, count: int, limit: float | None) -> float:
    """Return the seconds that so many processes of one thread take."""
    return time_commands([[sys.executable, "-c", code]] * count, ASLEEP, limit)


@dataclass
class Comparison:
    """The seconds of what is compared, alone and beside other processes, in each round."""

    time_one: Callable[[float | None], float]
    alone: list[float] = field(default_factory=list)
    beside: list[float] = field(default_factory=list)

    def measure(self) -> None:
        """Measure one round."""
        self.alone.append(self.time_one(None))
        with keep_busy(args.processes):
            self.beside.append(self.time_one(args.limit * self.alone[-1]))

    def summarize(self) -> dict[str, Any]:
        """Return medians and the ratio of each round."""
        ratios = [beside / alone for alone, beside in zip(self.alone, self.beside, strict=True)]
        usual, longer = statistics.median(self.alone), statistics.median(self.beside)
        return {
            "seconds_alone": usual,
            "seconds_beside": longer,
            "ratio": longer / usual,
            "ratios_of_rounds": ratios,
            "ended": any(ratio >= args.limit for ratio in ratios),
        }


def main() -> None:
    """Measure run and controls in turn, round by round; print, write after each round."""
    cores = len(os.sched_getaffinity(0))
    waiting = {"asleep": Comparison(partial(time_run, ASLEEP))}
    controls = {
        "counting": Comparison(partial(time_control, COUNTING, 1)),
        "computing": Comparison(partial(time_control, COMPUTING, 1)),
        "computing_on_all_cores": Comparison(partial(time_control, COMPUTING, cores)),
    }
    if not args.demo:
        waiting["spinning"] = Comparison(partial(time_run, SPINNING))
    for number in range(args.rounds):
        for name, each in {**waiting, **controls}.items():
            if name != "spinning" or number == 0:
                each.measure()
                print(f"{name}: {each.alone[-1]:.1f} s alone, {each.beside[-1]:.1f} s beside", flush=True)
        result = {
            "cores": cores,
            "processes": args.processes,
            "rounds": number + 1,
            "in_proportion": (cores + args.processes) / cores,
            "in_proportion_one_thread": max(1.0, (1 + args.processes) / cores),
            "waiting": {name: each.summarize() for name, each in waiting.items()},
            "controls": {name: each.summarize() for name, each in controls.items()},
        }
        print_table("busy_machine", result)
        save(args.name or ("busy_demo" if args.demo else "busy_machine"), result, args.out, device="cpu")


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
