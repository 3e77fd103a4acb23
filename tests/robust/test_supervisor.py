"""The watch itself: attacks that crash, hang, take memory or lose something are seen, and the tries after them are run."""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
import time
from pathlib import Path
from random import Random

import pytest

from caprompt.errors import InputError
from robust import registry, supervisor
from robust.attack import Attack, InvalidError, LostError, RefusedError, judge
from robust.forks import Ended, make_fault, make_killer, run_fork
from robust.supervisor import run_attack

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="memory and forks are watched as on Linux")

# An attack whose tries go wrong in every way, one after another; a process of tries imports it under this name.
BAD = """
import os, signal, time
from robust.attack import Attack, LostError, RefusedError

def damage(context, folder, rng, number):
    (folder / "number").write_text(str(number))
    return f"number {number}"

def use(context, folder):
    number = int((folder / "number").read_text())
    if number == 0: raise RefusedError("no")
    if number == 1: os.kill(os.getpid(), signal.SIGSEGV)
    if number == 2: time.sleep(60)
    if number == 3: raise KeyError("x")
    if number == 4: raise LostError("gone")
    if number == 5: bytearray(b"x") * 300_000_000
    if number == 6: kept = [bytearray(b"x") * 100_000_000 for _ in range(60)]; time.sleep(5)

ATTACK = Attack("bad", "bad", 8, 8, lambda folder: None, damage, use, limit=1.0)
"""


@pytest.fixture
def bad(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Put the attack where processes find it, and return a folder for cases."""
    package = tmp_path / "path" / "robust"
    shutil.copytree(Path(supervisor.__file__).parent, package, ignore=shutil.ignore_patterns("cases", "__pycache__", "test_*"))
    (package / "bad.py").write_text(BAD)
    monkeypatch.setattr(supervisor, "TESTS", tmp_path / "path")
    monkeypatch.setattr(supervisor, "GRACE", 0.5)
    monkeypatch.setattr(supervisor, "MAX_BYTES", 200_000_000)
    monkeypatch.setattr(supervisor, "STOP_BYTES", 1_000_000_000)
    attack = Attack("bad", "bad", 8, 8, lambda folder: None, lambda *_: "", lambda *_: None, limit=1.0)
    monkeypatch.setattr(supervisor, "get_attack", {"bad": attack}.__getitem__)
    return tmp_path / "cases"


@pytest.mark.slow
def test_every_way_to_go_wrong_is_seen(bad: Path) -> None:
    tally = run_attack("bad", 1, 8, cases=bad)
    assert tally.counts == {"refused": 1, "crashed": 2, "hung": 1, "lost": 1, "memory": 2, "accepted": 1}
    assert [failure["number"] for failure in tally.failures] == [1, 2, 3, 4, 5, 6]
    assert "KeyError: 'x'" in tally.failures[2]["message"]
    assert "-11" in tally.failures[0]["message"]
    assert sorted(path.name for path in bad.iterdir()) == [f"bad-1-{number}" for number in range(1, 7)]
    case = json.loads((bad / "bad-1-4" / "case.json").read_text())
    assert (case["kind"], case["seed"], case["number"], case["outcome"]) == ("bad", 1, 4, "lost")
    assert (bad / "bad-1-4" / "material" / "number").read_text() == "4"
    row = tally.as_row()
    assert (row["tries"], row["hung"], row["longest_seconds"]) == (8, 1, 1.5)


def test_sentences_are_told_from_other_errors() -> None:
    def fail(error: Exception) -> str:
        def use() -> None:
            raise error

        return judge(use)[0]

    assert fail(InputError("one sentence")) == "refused"
    assert fail(InputError("two\nlines")) == "crashed"
    assert fail(InputError("x" * 5000)) == "crashed"
    assert fail(ValueError("not ours")) == "crashed"
    assert fail(InvalidError("NaN")) == "crashed"
    assert fail(LostError("gone")) == "lost"
    assert judge(lambda: None)[0] == "accepted"


def test_commands_are_judged_by_status_and_lines() -> None:
    Ended(0, "", 0.1).check()
    for status in (1, 2):
        with pytest.raises(RefusedError, match="no space"):
            Ended(status, "warning: few images\ncaprompt: no space\n", 0.1).check()
    for ended in (
        Ended(2, "", 0.1),
        Ended(1, "Traceback\n", 0.1),
        Ended(2, "caprompt: a\ncaprompt: b", 0.1),
        Ended(3, "caprompt: a", 0),
    ):
        with pytest.raises(AssertionError):
            ended.check()


def write_twice(folder: Path) -> int:
    for name in ("a", "b"):
        with (folder / name).open("w") as file:
            os.fsync(file.fileno())
    return 0


def test_forks_are_killed_and_fail_at_an_operation(tmp_path: Path) -> None:
    whole = run_fork(lambda: write_twice(tmp_path), folder=tmp_path, note=True)
    assert (whole.status, whole.operations) == (0, 4)
    for at, left in ((0, []), (2, ["a"]), (3, ["a", "b"])):
        for path in tmp_path.iterdir():
            path.unlink()
        assert run_fork(lambda: write_twice(tmp_path), folder=tmp_path, hook=make_killer(at)).status == -signal.SIGKILL
        assert sorted(path.name for path in tmp_path.iterdir()) == left
    fault = make_fault(28, 2, lasting=False, where=tmp_path)
    failed = run_fork(lambda: write_twice(tmp_path), folder=tmp_path, hook=fault)
    assert failed.status == 70
    assert "No space left on device" in failed.stderr


def test_forks_that_hang_are_ended() -> None:
    with pytest.raises(TimeoutError):
        run_fork(lambda: time.sleep(60) or 0, limit=0.2)
    start_time = time.monotonic()
    assert run_fork(lambda: time.sleep(60) or 0, kill_after=0.2).status == -signal.SIGKILL
    assert time.monotonic() - start_time < 5


def test_tries_are_reproducible(tmp_path: Path) -> None:
    attack = registry.get_attack("archives")
    context = attack.prepare(tmp_path)
    contents = []
    for folder in (tmp_path / "1", tmp_path / "2"):
        folder.mkdir()
        attack.damage(context, folder, Random("17-3"), 3)
        contents.append([path.read_bytes() for path in folder.iterdir()])
    assert contents[0] == contents[1]
