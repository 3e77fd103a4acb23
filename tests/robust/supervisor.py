"""Watches the processes in which tries run, from outside: a hang, too much memory and a crash are seen wherever they happen."""

from __future__ import annotations

import json
import os
import queue
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from robust.attack import CRASHED, GOOD, HUNG, MAX_BYTES, MEMORY, OUTCOMES, Attack
from robust.registry import get_attack
from robust.worker import DEFECTIVE, copy_material

TESTS = Path(__file__).resolve().parents[1]
CASES = Path(__file__).parent / "cases"
START_LIMIT = 300.0  # seconds until a process is ready, of which importing and training take some
GRACE = 5.0  # seconds beyond the limit of a try, after which its process is killed
STOP_BYTES = 2 * MAX_BYTES  # a process is killed at this size, before the machine runs out of memory
MAX_CASE_BYTES = 500_000  # of material that is saved
MAX_CASES = 20  # of one attack that are saved


@dataclass
class Tally:
    """What came of the tries of one attack."""

    name: str
    title: str
    seed: int
    tries: int = 0
    counts: Counter[str] = field(default_factory=Counter)
    seconds: float = 0.0  # of the longest try
    total_seconds: float = 0.0
    bytes: int = 0  # of the largest one
    failures: list[dict[str, Any]] = field(default_factory=list)

    def add(self, result: dict[str, Any]) -> None:
        """Count a try."""
        if result["bytes"] > MAX_BYTES and result["outcome"] in GOOD:
            result["outcome"] = MEMORY
        self.tries += 1
        self.counts[result["outcome"]] += 1
        self.seconds, self.bytes = max(self.seconds, result["seconds"]), max(self.bytes, result["bytes"])
        if result["outcome"] not in GOOD:
            self.failures.append(result)

    def as_row(self) -> dict[str, Any]:
        """Return the row of the table."""
        counts = {outcome: self.counts[outcome] for outcome in OUTCOMES}
        peaks = {"longest_seconds": round(self.seconds, 1), "peak_bytes": self.bytes, "seconds": round(self.total_seconds)}
        return {"kind": self.name, "title": self.title, "seed": self.seed, "tries": self.tries, **counts, **peaks}


class _Process:
    """One process of tries, with its messages."""

    def __init__(self, name: str, seed: int, first: int, count: int, folder: Path) -> None:
        path = os.pathsep.join(filter(None, (str(TESTS), os.environ.get("PYTHONPATH", ""))))
        words = [sys.executable, "-m", "robust.worker", name, *map(str, (seed, first, count)), str(folder)]
        environment = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
        self.errors = tempfile.TemporaryFile()  # noqa: SIM115
        self.process = subprocess.Popen(
            words, stdout=subprocess.PIPE, stderr=self.errors, env=environment, cwd=folder, start_new_session=True
        )
        self.messages: queue.Queue[dict[str, Any] | None] = queue.Queue()
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.messages.put(json.loads(line))
        self.messages.put(None)

    def wait(self, seconds: float) -> tuple[str, dict[str, Any] | None]:
        """Return the next message as ("", message); or why there is none, after the end of the process."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            with suppress(queue.Empty):
                message = self.messages.get(timeout=0.1)
                if message is not None:
                    return "", message
                self.process.wait()
                return CRASHED, None
            if self._read_bytes() > STOP_BYTES:
                self.kill()
                return MEMORY, None
        self.kill()
        return HUNG, None

    def _read_bytes(self) -> int:
        try:
            return int(Path(f"/proc/{self.process.pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
        except (OSError, IndexError):
            return 0

    def kill(self) -> None:
        """End the process and those that it has started, which are in its session."""
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, 9)
        self.process.wait()

    def read_errors(self) -> str:
        """Return the end of what the process has printed."""
        self.errors.seek(0)
        return self.errors.read().decode(errors="replace")[-3000:]


def run_attack(
    name: str,
    seed: int,
    count: int,
    *,
    first: int = 0,
    cases: Path | None = CASES,
    report: Callable[[dict[str, Any]], None] = lambda _: None,
) -> Tally:
    """Run tries of one attack; a process that ends or hangs counts as its current try, and another one goes on after it."""
    attack = get_attack(name)
    tally = Tally(name, attack.title, seed)
    number = first
    with tempfile.TemporaryDirectory(prefix="robust-", ignore_cleanup_errors=True) as temporary:
        while number < first + count:
            root = Path(temporary) / str(number)
            root.mkdir()
            number = _run_process(attack, tally, number, first + count, root, cases, report)
    return tally


def _run_process(
    attack: Attack, tally: Tally, number: int, end: int, root: Path, cases: Path | None, report: Callable[[dict[str, Any]], None]
) -> int:
    """Run tries from `number` on until all are done or the process is lost; return the number to go on with."""
    process = _Process(attack.name, tally.seed, number, end - number, root)
    try:
        problem, _ = process.wait(START_LIMIT)
        if problem:
            raise RuntimeError(f"'{attack.name}' could not be prepared: {problem}\n{process.read_errors()}")
        while number < end:
            problem, _ = process.wait(START_LIMIT)
            problem, message = (problem, None) if problem else process.wait(attack.limit + GRACE)
            if process.process.poll() == DEFECTIVE:
                raise RuntimeError(f"'{attack.name}' could not make its try {number}\n{process.read_errors()}")
            if message is None:
                message = _describe_loss(process, problem, number, root, attack)
            tally.add(message)
            if message["outcome"] not in GOOD and cases is not None and len(tally.failures) <= MAX_CASES:
                save_case(cases, tally, message)
            number += 1
            report(message)
            if problem:
                break
    finally:
        process.kill()
    return number


def _describe_loss(process: _Process, problem: str, number: int, root: Path, attack: Attack) -> dict[str, Any]:
    path = root / "description"
    return {
        "number": number,
        "outcome": problem,
        "message": f"exit status {process.process.returncode}; {process.read_errors()}",
        "description": path.read_text(encoding="utf-8") if path.is_file() else "",
        "seconds": attack.limit + GRACE if problem == HUNG else 0.0,
        "bytes": STOP_BYTES if problem == MEMORY else 0,
        "material": str(root / "material"),
    }


def save_case(cases: Path, tally: Tally, failure: dict[str, Any]) -> Path:
    """Save the material of a failed try, if it is small, and what is needed to make it again."""
    folder = cases / f"{tally.name}-{tally.seed}-{failure['number']}"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    material = Path(failure["material"])
    size = sum(path.lstat().st_size for path in material.rglob("*") if not path.is_dir())
    if size <= MAX_CASE_BYTES:
        copy_material(material, folder / "material")
    facts = {name: failure[name] for name in ("number", "outcome", "description", "message")}
    (folder / "case.json").write_text(json.dumps({"kind": tally.name, "seed": tally.seed, **facts}, indent=1) + "\n")
    return folder
