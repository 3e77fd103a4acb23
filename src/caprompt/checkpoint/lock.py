"""One writer at a time: a lock on a model folder, held while a model learns, is saved or is edited.

The lock is an operating-system lock on the file `.lock`, so a process that dies releases it. The file holds the process id, for
the message that another process gets, and is deleted with the lock.
"""

from __future__ import annotations

import json
import os
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from caprompt.errors import ModelFolderError
from caprompt.utils.files import READY, check_no_link, remove_drafts

if sys.platform == "win32":
    import msvcrt
else:
    import fcntl

__all__ = ["LOCK", "lock_folder"]

LOCK = ".lock"


@contextmanager
def lock_folder(folder: Path) -> Iterator[None]:
    """Hold the lock of a folder, which is created if need be; raise `ModelFolderError` if another writer holds it."""
    file = folder / LOCK
    created = _make_folder(folder)
    for path in folder.iterdir():
        if path.is_dir() or path.name in (LOCK, READY):  # links to single files are replaced, never written through
            check_no_link(path)
    try:
        descriptor = _acquire(file)
    except OSError as error:
        raise ModelFolderError(f"the model folder '{folder}' cannot be written to ({error.strerror}); choose another") from error
    try:
        _write_owner(descriptor)
        remove_drafts(folder)
        yield
    finally:
        with suppress(OSError):  # Windows deletes no open file, and a disk may fail; the file does no harm once it is closed
            file.unlink(missing_ok=True)
        os.close(descriptor)
        for path in created:  # only those that nothing was written to
            with suppress(OSError):
                path.rmdir()


def _make_folder(folder: Path) -> list[Path]:
    """Create a folder and return those that did not exist before, the innermost first."""
    missing = [path for path in (folder, *folder.parents) if not path.exists()]
    in_the_way = next((path for path in (folder, *folder.parents) if path.exists() and not path.is_dir()), None)
    if in_the_way is not None:
        raise ModelFolderError(f"the model cannot be saved in '{folder}': '{in_the_way}' is a file; choose another folder")
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ModelFolderError(f"the model folder '{folder}' cannot be made ({error.strerror}); choose another") from error
    return missing


def _acquire(file: Path) -> int:
    """Return the open, locked file; raise `ModelFolderError` if another writer has locked it."""
    while True:
        descriptor = os.open(file, os.O_RDWR | os.O_CREAT, 0o644)
        if not _try_lock(descriptor):
            os.close(descriptor)
            raise _make_refusal(file)
        # An owner deletes the file before it lets go: then this lock is on a file that others no longer see.
        with suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(descriptor), file.stat()):
                return descriptor
        os.close(descriptor)


def _try_lock(descriptor: int) -> bool:
    try:
        if sys.platform == "win32":
            msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)
        else:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (BlockingIOError, PermissionError):
        return False
    return True


def _write_owner(descriptor: int) -> None:
    os.ftruncate(descriptor, 0)
    os.write(descriptor, json.dumps({"pid": os.getpid(), "host": socket.gethostname()}).encode())


def _read_owner(file: Path) -> dict[str, object]:
    try:
        owner = json.loads(file.read_bytes())
    except (OSError, ValueError):
        return {}
    return owner if isinstance(owner, dict) else {}


def _make_refusal(file: Path) -> ModelFolderError:
    owner = _read_owner(file)
    by = f" (process {owner['pid']} on {owner['host']})" if {"pid", "host"} <= owner.keys() else ""
    return ModelFolderError(f"'{file.parent}' is being changed by another call{by}; wait until it has ended")
