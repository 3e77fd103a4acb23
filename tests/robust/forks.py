"""Commands in forks of a process that has imported everything: killed at a moment, with failing storage, or with another clock.

A fork takes milliseconds where a new process takes seconds to import torch. What goes wrong in it is its own: faults are injected
by an audit hook, which cannot be removed again.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import resource
import signal
import sys
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import torch

from caprompt import checkpoint
from caprompt.utils.files import get_current_path
from robust.attack import MAX_BYTES, LostError, RefusedError

LIMIT = 10.0  # seconds of a command
CHANGES = frozenset({"os.mkdir", "os.rename", "os.link", "os.symlink", "os.truncate"})  # take space, as writing does
REMOVALS = frozenset({"os.remove", "os.rmdir"})
READS = frozenset({"os.listdir", "os.scandir", "shutil.rmtree"})
LIBRARIES = frozenset({"caprompt", "torch", "numpy", "scipy", "sklearn", "PIL", "matplotlib", "rich", "pydantic", "cyclopts"})
TO_WRITE = (os.O_WRONLY, os.O_RDWR)
Hook = Callable[[str, int], None]  # gets the name of an operation and how many there were before it


@dataclass(frozen=True)
class Ended:
    """A command that has ended: `status` is its exit status, or minus the signal."""

    status: int
    stderr: str
    seconds: float
    operations: int = 0  # in the watched folder
    modules: tuple[str, ...] = ()  # that it has imported

    def check(self) -> None:
        """Raise `RefusedError` for a refusal as it should be, and AssertionError for any other failure."""
        if self.status == 0:
            return
        lines = self.stderr.strip().splitlines()
        problems = [line for line in lines if line.startswith("caprompt: ")]
        others = [line for line in lines if not line.startswith(("caprompt: ", "warning: ", "skipped: ", "ignored "))]
        if self.status in (1, 2) and len(problems) == 1 and not others:
            raise RefusedError(problems[0])
        raise AssertionError(f"exit status {self.status}, stderr:\n{self.stderr}")


@dataclass(frozen=True)
class Fork:
    """A fork that is running."""

    pid: int
    stderr: int
    notes: int
    start_time: float

    def wait(self, kill_after: float | None = None, limit: float = LIMIT) -> Ended:
        """Wait for its end; raise `TimeoutError` after the limit."""
        while True:
            pid, status, usage = os.wait4(self.pid, os.WNOHANG)
            seconds = time.monotonic() - self.start_time
            if pid:
                break
            if seconds > limit or (kill_after is not None and seconds >= kill_after):
                os.kill(self.pid, signal.SIGKILL)
                if seconds > limit:
                    os.wait4(self.pid, 0)
                    raise TimeoutError(f"a command took more than {limit} s")
            time.sleep(0.001)
        with os.fdopen(self.stderr, "rb") as errors, os.fdopen(self.notes, "rb") as notes:
            stderr, noted = errors.read().decode(errors="replace"), json.loads(notes.read() or b"{}")
        if usage.ru_maxrss * 1024 > MAX_BYTES:
            raise MemoryError(f"a command took {usage.ru_maxrss * 1024:,} bytes")
        return Ended(os.waitstatus_to_exitcode(status), stderr, seconds, **noted)


def run_fork(
    function: Callable[[], int],
    *,
    folder: Path | None = None,
    hook: Hook | None = None,
    setup: Callable[[], None] = lambda: None,
    note: bool = False,
    kill_after: float | None = None,
    limit: float = LIMIT,
) -> Ended:
    """Run a function in a fork and wait for it.

    `hook` is called before each file operation in `folder`, and may raise or kill. With `note`, operations and imported modules are
    returned. With `kill_after`, the fork is killed after so many seconds.
    """
    return start_fork(function, folder=folder, hook=hook, setup=setup, note=note).wait(kill_after, limit)


def start_fork(
    function: Callable[[], int],
    *,
    folder: Path | None = None,
    hook: Hook | None = None,
    setup: Callable[[], None] = lambda: None,
    note: bool = False,
) -> Fork:
    """Start a function in a fork; see `run_fork`."""
    sys.stdout.flush()
    sys.stderr.flush()
    (errors, own_errors), (notes, own_notes) = os.pipe(), os.pipe()
    start_time = time.monotonic()
    pid = os.fork()
    if pid:
        os.close(own_errors)
        os.close(own_notes)
        return Fork(pid, errors, notes, start_time)
    status, known = 70, set(sys.modules)
    try:
        nothing = os.open(os.devnull, os.O_RDWR)
        os.dup2(nothing, 0)
        os.dup2(nothing, 1)
        os.dup2(own_errors, 2)
        sys.stdout, sys.stderr = open(1, "w", closefd=False), open(2, "w", closefd=False)  # noqa: SIM115
        torch.set_num_threads(1)
        setup()
        counter = _watch(folder, hook) if folder is not None else [0]
        status = function()
        sys.stdout.flush()
        sys.stderr.flush()
        if note:
            os.write(own_notes, json.dumps({"operations": counter[0], "modules": _list_new_modules(known)}).encode())
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
    finally:
        os._exit(status)


def _list_new_modules(known: set[str]) -> list[str]:
    """Return the modules that were imported since, at most as many as fit into a pipe."""
    return [name for name in sorted(set(sys.modules) - known) if name.split(".")[0] in LIBRARIES][:1000]


def _watch(folder: Path, hook: Hook | None) -> list[int]:
    """Call the hook before every file operation in a folder, and before every sync to disk; return the number so far."""
    counter, is_busy = [0], False
    sync = os.fsync

    def meet(name: str) -> None:
        nonlocal is_busy
        if is_busy:
            return
        is_busy = True
        try:
            number = counter[0]
            counter[0] += 1
            if hook is not None:
                hook(name, number)
        finally:
            is_busy = False

    def audit(event: str, arguments: tuple[object, ...]) -> None:
        if event not in CHANGES and event not in REMOVALS and event not in READS and event != "open":
            return
        if not arguments or str(folder) not in str(arguments[0]) + str(arguments[1:2]):
            return
        flags = arguments[2] if event == "open" and len(arguments) > 2 else 0
        is_write = isinstance(flags, int) and (flags & os.O_ACCMODE) in TO_WRITE
        meet("open to write" if is_write else event)

    def watch_sync(descriptor: int) -> None:
        meet("fsync")
        sync(descriptor)

    os.fsync = watch_sync
    sys.addaudithook(audit)
    return counter


def make_killer(at: int) -> Hook:
    """Return a hook that kills the process before its operation number `at`."""

    def kill(_: str, number: int) -> None:
        if number == at:
            os.kill(os.getpid(), signal.SIGKILL)

    return kill


def make_fault(code: int, at: int, *, lasting: bool, where: Path) -> Hook:
    """Return a hook that fails operation number `at`, or with `lasting` also all later ones, as a disk does that is full or away.

    A full disk lets files be read and removed, a read-only one lets them be read.
    """
    is_full = code in (errno.ENOSPC, errno.EDQUOT)
    spared = READS | {"open"} | (REMOVALS if is_full else frozenset())

    def fail(name: str, number: int) -> None:
        if number < at or (number > at and not lasting):
            return
        if name in spared and not (code == errno.EIO and number == at):
            return
        raise OSError(code, os.strerror(code), str(where))

    return fail


def limit_file_size(size: int) -> None:
    """Let every write beyond so many bytes of a file fail, after those bytes were written: the system's own fault."""
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))


def read_model(folder: Path) -> dict[str, str]:
    """Return the hashes of the files of a model, whose own hashes are right; of none, an empty dictionary."""
    if not checkpoint.exists(folder):
        return {}
    try:
        checkpoint.read(folder)
        names = [name for name in checkpoint.list_files(folder) if name != checkpoint.EVALUATION]
    except Exception as error:
        raise LostError(f"the model cannot be read: {error}") from error
    return {name: hashlib.sha256(get_current_path(folder, name).read_bytes()).hexdigest() for name in names}


def read_content(folder: Path) -> dict[str, str]:
    """Return the hashes of what a model has learned; `config.json` has dates and seconds besides."""
    files = read_model(folder)
    return {name: files[name] for name in ("classes.json", "state.safetensors") if name in files}


def check_clean(folder: Path) -> None:
    """Raise `LostError` if something was left behind in a folder."""
    with suppress(FileNotFoundError):
        left = [path.name for path in folder.iterdir() if path.name.startswith(".")]
        if left:
            raise LostError(f"left behind: {left}")
