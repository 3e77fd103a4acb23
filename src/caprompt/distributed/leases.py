"""Leases on shared storage: of all processes on all machines that see a folder, one at a time holds the lease of a name.

The lease `name` is the highest-numbered file in the folder `name`. Its owner changes the file's modification time every few
seconds, to a number that only counts up, which needs neither disk space nor a clock that others agree with. Someone else who has
watched it for EXPIRY seconds of his own time without a change takes it for abandoned, and creates the file of the next number,
which the file system grants to one process only. An owner that was merely slow finds the higher number at its next heartbeat, and
`on_lost` is called: it must stop at once. A lease whose owner ran on this machine and is gone is taken without waiting.

    lease = Lease(folder / "cell-17")
    lease.acquire()      # waits for an owner that is alive
    ...
    lease.release()
"""

from __future__ import annotations

import json
import os
import secrets
import signal
import socket
import threading
import time
from _thread import interrupt_main
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from caprompt.errors import InputError

__all__ = ["EXPIRY", "HEARTBEAT", "Lease", "exit_process", "hold_driver_lease", "hold_lease", "sees_driver"]

HEARTBEAT = 4.0  # seconds between two signs of life
EXPIRY = 60.0  # seconds without one; longer than file attributes are cached by a network file system
POLL = 0.5  # seconds between two looks at another owner's lease, at most
DRIVER = "driver"  # name of the lease of the process that directs all others
TICK = 2  # seconds by which a heartbeat moves the modification time: the coarsest resolution of a file system


def exit_process() -> None:
    """End this process at once: another one has taken over what it was doing."""
    os._exit(75)


class Lease:
    """The exclusive right to do what a folder stands for; see the module."""

    def __init__(
        self, folder: Path, *, heartbeat: float = HEARTBEAT, expiry: float = EXPIRY, on_lost: Callable[[], None] = exit_process
    ) -> None:
        self.folder, self.heartbeat, self.expiry, self.on_lost = folder, heartbeat, expiry, on_lost
        self.token = secrets.token_hex(8)
        self._number = 0
        self._stop = threading.Event()
        self._beating: threading.Thread | None = None

    @property
    def path(self) -> Path:
        """The file of the lease that is held."""
        return self.folder / str(self._number)

    def acquire(self, wait: bool = True) -> bool:
        """Take the lease; with an owner that is alive, wait for it to let go, or without `wait` return False."""
        watch = _Watch(self.folder, self.expiry)
        while not self._try(watch):
            if not wait and watch.is_alive:
                return False
            time.sleep(min(POLL, self.expiry / 4))
        self._stop.clear()
        self._beating = threading.Thread(target=self._beat, name=f"lease {self.folder.name}", daemon=True)
        self._beating.start()
        return True

    def release(self) -> None:
        """Let go of the lease, so that another process can take it at once."""
        self._stop.set()
        if self._beating is not None and self._beating is not threading.current_thread():
            self._beating.join()
        for number in _list_numbers(self.folder):
            if number <= self._number:
                (self.folder / str(number)).unlink(missing_ok=True)
        with suppress(OSError):  # someone else is in it
            self.folder.rmdir()
            self.folder.parent.rmdir()

    def _try(self, watch: _Watch) -> bool:
        """Create the file of the next number if there is no owner, or an abandoned one; return whether the lease is held now."""
        before = watch.look()
        if before and not watch.is_abandoned:
            return False
        path = self.folder / str(before + 1)
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            with path.open("x", encoding="utf-8") as file:
                json.dump({**_describe_process(), "token": self.token}, file)
        except (FileExistsError, FileNotFoundError):  # someone else was faster, or has just let go
            return False
        except OSError as error:  # such as a full disk
            path.unlink(missing_ok=True)
            raise OSError(error.errno, error.strerror, str(self.folder.parent)) from error
        # A slower process may have looked before the last owner let go: its number counts only while the one before is there.
        numbers = _list_numbers(self.folder)
        if max(numbers, default=0) != before + 1 or (numbers != [1] if not before else before not in numbers):
            path.unlink(missing_ok=True)
            return False
        self._number = before + 1
        return True

    def _beat(self) -> None:
        count = 0
        while not self._stop.wait(self.heartbeat):
            count += TICK
            try:
                os.utime(self.path, (count, count))
                is_lost = _find_highest(self.folder) != self._number
            except FileNotFoundError:  # someone removed the folder
                is_lost = True
            except OSError:  # the storage is away for a moment; if for long, others will take over
                continue
            if is_lost and not self._stop.is_set():
                self.on_lost()
                return


class _Watch:
    """What can be seen of the owner of a lease from outside, over time."""

    def __init__(self, folder: Path, expiry: float) -> None:
        self.folder, self.expiry = folder, expiry
        self.is_abandoned = False  # no sign of life for long enough
        self.is_alive = False  # a sign of life was seen
        self._seen: tuple[int, int] = (0, 0)
        self._since = time.monotonic()

    def look(self) -> int:
        """Return the number of the current lease, 0 if there is none."""
        number = _find_highest(self.folder)
        path = self.folder / str(number)
        try:
            with path.open("rb") as file:  # opening it makes a network file system ask its server
                state = (number, os.fstat(file.fileno()).st_mtime_ns)
                owner = _parse_owner(file.read())
        except OSError:
            state, owner = (number, 0), {}
        now = time.monotonic()
        if state != self._seen:
            self.is_alive = number > 0 and self._seen[0] > 0
            self._seen, self._since = state, now
        is_running = _is_running(owner)
        self.is_alive = self.is_alive or is_running is True
        self.is_abandoned = now - self._since >= self.expiry or is_running is False
        return number


@contextmanager
def hold_driver_lease(folder: Path, output: Path, *, heartbeat: float = HEARTBEAT, expiry: float = EXPIRY) -> Iterator[Lease]:
    """Hold the lease of the one process that directs the work on an output; raise `InputError` if another one does."""
    with hold_lease(folder / DRIVER, output, wait=False, heartbeat=heartbeat, expiry=expiry) as lease:
        yield lease


@contextmanager
def hold_lease(
    folder: Path, output: Path, *, wait: bool = True, heartbeat: float = HEARTBEAT, expiry: float = EXPIRY
) -> Iterator[Lease]:
    """Hold the lease of an output that the main thread writes; raise `InputError` if another process takes over.

    While another one holds it, wait, or without `wait` raise `InputError`.
    """
    lost = threading.Event()

    def stop() -> None:
        lost.set()
        if hasattr(signal, "pthread_kill"):
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)  # also out of a system call
        else:
            interrupt_main()

    lease = Lease(folder, heartbeat=heartbeat, expiry=expiry, on_lost=stop)
    if not lease.acquire(wait):
        owner = _read_owner(lease.folder)
        by = f" (process {owner['pid']} on {owner['host']})" if {"pid", "host"} <= owner.keys() else ""
        message = f"'{output}' is being written by another call{by}; wait until it has ended, or choose another output with out=..."
        raise InputError(message)
    try:
        yield lease
    except KeyboardInterrupt:
        if lost.is_set():
            raise InputError(f"another call has taken over '{output}', since this one stood still for too long") from None
        raise
    finally:
        lease.release()


def sees_driver(folder: Path, token: str, timeout: float = EXPIRY) -> bool:
    """Return whether the driver with this token is at work in a folder, which shows where storage is shared, if not at once."""
    deadline = time.monotonic() + timeout
    while _read_owner(folder / DRIVER).get("token") != token:
        if time.monotonic() >= deadline:
            return False
        time.sleep(POLL)
    return True


def _list_numbers(folder: Path) -> list[int]:
    try:
        return sorted(int(path.name) for path in folder.iterdir() if path.name.isdigit())
    except (FileNotFoundError, NotADirectoryError):
        return []


def _find_highest(folder: Path) -> int:
    return max(_list_numbers(folder), default=0)


def _read_owner(folder: Path) -> dict[str, Any]:
    try:
        return _parse_owner((folder / str(_find_highest(folder))).read_bytes())
    except OSError:
        return {}


def _parse_owner(content: bytes) -> dict[str, Any]:
    try:
        owner = json.loads(content)
    except ValueError:  # just created
        return {}
    return owner if isinstance(owner, dict) else {}


def _describe_process() -> dict[str, Any]:
    """Return what identifies this process among all of all machines; `place` is empty where that cannot be told."""
    return {"pid": os.getpid(), "host": socket.gethostname(), "place": _identify_place(), "started": _read_start(os.getpid())}


def _is_running(owner: dict[str, Any]) -> bool | None:
    """Return whether a process of this machine still runs; None for one of another machine."""
    place = _identify_place()
    if not place or owner.get("place") != place:
        return None
    return bool(_read_start(int(owner.get("pid", 0))) == owner.get("started"))


def _identify_place() -> str:
    """Return what processes that see the same process ids have in common: one boot of a machine, and one container of it."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        return f"{boot} {Path('/proc/self/ns/pid').readlink()}"
    except OSError:
        return ""


def _read_start(pid: int) -> str:
    """Return when a process started, in ticks since the boot; empty if there is none, or if it is a zombie."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
    except OSError:
        return ""
    return "" if fields[0] in "ZX" else fields[19]
