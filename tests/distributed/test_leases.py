from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from caprompt.distributed import leases
from caprompt.distributed.leases import Lease, hold_driver_lease, sees_driver
from caprompt.errors import InputError

QUICK = {"heartbeat": 0.05, "expiry": 0.5}

COUNT = """
import sys, time
from pathlib import Path
from caprompt.distributed.leases import Lease
folder = Path(sys.argv[1])
for _ in range(int(sys.argv[2])):
    lease = Lease(folder / "leases" / "counter", heartbeat=0.05, expiry=2)
    lease.acquire()
    number = int((folder / "number").read_text())
    time.sleep(0.002)
    (folder / "number").write_text(str(number + 1))
    lease.release()
"""

HOLD = """
import sys, time
from pathlib import Path
from caprompt.distributed.leases import Lease
lease = Lease(Path(sys.argv[1]), heartbeat=0.05, expiry=0.5)
lease.acquire()
print("held", flush=True)
time.sleep(60)
"""


def forget_places(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let every process appear to run on a machine of its own, so that only heartbeats tell."""
    monkeypatch.setattr(leases, "_identify_place", lambda: "")


def test_one_of_several_processes_at_a_time(tmp_path: Path) -> None:
    (tmp_path / "number").write_text("0")
    words = [sys.executable, "-c", COUNT, str(tmp_path), "15"]
    processes = [subprocess.Popen(words) for _ in range(3)]
    assert [process.wait(timeout=60) for process in processes] == [0, 0, 0]
    assert (tmp_path / "number").read_text() == "45"
    assert not (tmp_path / "leases").exists()


def test_owner_is_waited_for_and_takes_no_harm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    forget_places(monkeypatch)
    first = Lease(tmp_path / "leases" / "a", **QUICK)
    assert first.acquire()
    assert not Lease(tmp_path / "leases" / "a", **QUICK).acquire(wait=False)
    threading.Timer(0.7, first.release).start()
    start = time.monotonic()
    second = Lease(tmp_path / "leases" / "a", **QUICK)
    second.acquire()
    assert time.monotonic() - start > 0.5  # longer than the expiry: the owner was alive
    second.release()
    assert list(tmp_path.iterdir()) == []


def test_abandoned_lease_is_taken_over_after_the_expiry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    forget_places(monkeypatch)
    (tmp_path / "leases" / "a").mkdir(parents=True)
    (tmp_path / "leases" / "a" / "3").write_text("{}")
    start = time.monotonic()
    lease = Lease(tmp_path / "leases" / "a", **QUICK)
    assert lease.acquire(wait=False)
    assert time.monotonic() - start >= 0.5
    assert lease.path.name == "4"
    lease.release()


@pytest.mark.parametrize("jump", [-86400.0, 86400.0])
def test_clock_jumps_do_not_matter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, jump: float) -> None:
    """Neither the clock of another machine nor the time stamps of its files are compared with the clock of this one."""
    forget_places(monkeypatch)
    first = Lease(tmp_path / "leases" / "a", **QUICK)
    first.acquire()
    real = time.time
    monkeypatch.setattr(time, "time", lambda: real() + jump)
    assert not Lease(tmp_path / "leases" / "a", **QUICK).acquire(wait=False)
    os.utime(first.path, (real() + jump, real() + jump))
    assert not Lease(tmp_path / "leases" / "a", **QUICK).acquire(wait=False)
    first.release()


def test_slow_owner_notices_that_its_lease_is_lost(tmp_path: Path) -> None:
    lost = threading.Event()
    lease = Lease(tmp_path / "leases" / "a", on_lost=lost.set, **QUICK)
    lease.acquire()
    (tmp_path / "leases" / "a" / "2").write_text("{}")  # as another process does that has seen no heartbeat
    assert lost.wait(timeout=5)
    lease.release()
    assert [path.name for path in (tmp_path / "leases" / "a").iterdir()] == ["2"]  # that of the new owner stays


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="only Linux tells whether a process is still the same")
def test_killed_owner_on_this_machine_is_noticed_at_once(tmp_path: Path) -> None:
    process = subprocess.Popen([sys.executable, "-c", HOLD, str(tmp_path / "leases" / "a")], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "held\n"
    lease = Lease(tmp_path / "leases" / "a", heartbeat=1, expiry=1000)
    assert not lease.acquire(wait=False)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert lease.acquire(wait=False)
    lease.release()


def test_second_driver_is_refused_with_a_sentence(tmp_path: Path) -> None:
    with hold_driver_lease(tmp_path / "leases", Path("out")) as lease:
        assert sees_driver(tmp_path / "leases", lease.token)
        assert not sees_driver(tmp_path / "elsewhere", lease.token, timeout=0.1)
        with (
            pytest.raises(InputError, match=rf"'out' is being written by another call \(process {os.getpid()} on "),
            hold_driver_lease(tmp_path / "leases", Path("out")),
        ):
            pass
    with hold_driver_lease(tmp_path / "leases", Path("out")):
        pass
    assert list(tmp_path.iterdir()) == []


def test_driver_that_stood_still_stops_with_a_sentence(tmp_path: Path) -> None:
    def stand_still() -> None:
        with hold_driver_lease(tmp_path / "leases", Path("out"), heartbeat=0.05) as lease:
            (lease.folder / "2").write_text("{}")
            time.sleep(10)

    with pytest.raises(InputError, match="another call has taken over 'out'"):
        stand_still()


def test_slower_process_gives_way(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A number counts only while the one that it follows is there: its owner may have let go, and another one begun anew."""
    slow = Lease(tmp_path / "leases" / "a", **QUICK)
    watch = leases._Watch(tmp_path / "leases" / "a", 0.0)
    (tmp_path / "leases" / "a").mkdir(parents=True)
    (tmp_path / "leases" / "a" / "1").write_text("{}")
    monkeypatch.setattr(watch, "look", lambda: 7)  # what it saw long ago
    watch.is_abandoned = True
    assert not slow._try(watch)
    assert [path.name for path in (tmp_path / "leases" / "a").iterdir()] == ["1"]
