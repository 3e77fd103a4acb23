"""Where a server keeps what is not part of a model: uploads, records of jobs, thumbnails, exports, and its lock.

    models/
      pets/                        the model
      .caprompt-serve/pets/        uploads/ jobs/ thumbnails/ exports/ .lock

It is beside the model, on the same disk. No name that a client chooses becomes a path, but for the names of models, which are
letters, digits, `-` and `_`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from caprompt.checkpoint.lock import LOCK, lock_folder
from caprompt.data.class_names import check_class_name
from caprompt.errors import DataError, InputError, ModelFolderError
from caprompt.utils.files import read_json

__all__ = ["STATE_FOLDER", "check_model_name", "find_state_folder", "has_work", "hold_server_lock", "make_model_name"]

STATE_FOLDER = ".caprompt-serve"
MODEL_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_-]{0,63}")


def check_model_name(name: str) -> str:
    """Return a valid name of a model; raise `InputError` for any other.

    >>> check_model_name("pets_2")
    'pets_2'
    >>> check_model_name("../pets")
    Traceback (most recent call last):
    caprompt.errors.InputError: '../pets' cannot be the name of a model; use up to 64 letters, digits, '-' and '_'
    >>> check_model_name("con")
    Traceback (most recent call last):
    caprompt.errors.InputError: 'con' cannot be the name of a model; it is a reserved device name on Windows
    """
    if not MODEL_NAME.fullmatch(name):
        raise InputError(f"{name[:80]!r} cannot be the name of a model; use up to 64 letters, digits, '-' and '_'")
    try:
        check_class_name(name)
    except DataError:
        raise InputError(f"{name!r} cannot be the name of a model; it is a reserved device name on Windows") from None
    return name


def make_model_name(folder: Path) -> str:
    """Return the name under which a folder is served: its own, with `-` for what names may not have.

    >>> make_model_name(Path("models/my pets!")), make_model_name(Path("pets"))
    ('my-pets-', 'pets')
    """
    name = re.sub(r"[^A-Za-z0-9_-]", "-", folder.resolve().name)[:64].lstrip("-")
    return check_model_name(name or "model")


def find_state_folder(folder: Path) -> Path:
    """Return where a server keeps what belongs to the model in a folder."""
    resolved = folder.resolve()
    return resolved.parent / STATE_FOLDER / resolved.name


def has_work(state: Path) -> bool:
    """Return whether a state folder has images that were not taught yet, or a job that has not ended."""
    if any((state / "uploads").glob("*")):
        return True
    return any(not _has_ended(path) for path in (state / "jobs").glob("*.json"))


def _has_ended(record: Path) -> bool:
    try:
        return read_json(record).get("state") in ("done", "failed", "canceled")
    except InputError:  # damaged
        return True


@contextmanager
def hold_server_lock(folder: Path) -> Iterator[Path]:
    """Be the only server of a model; return its state folder, or raise if another server has it."""
    state = find_state_folder(folder)
    with ExitStack() as held:
        try:
            held.enter_context(lock_folder(state))
        except ModelFolderError as error:
            if not (state / LOCK).is_file():  # not a lock but, for instance, a disk that cannot be written to
                raise
            raise InputError(f"'{folder}' is served already{_describe_owner(state / LOCK)}; use that server, or stop it") from error
        yield state


def _describe_owner(file: Path) -> str:
    try:
        owner = read_json(file)
    except InputError:  # just being written
        return ""
    return f" by process {owner['pid']} on {owner['host']}" if {"pid", "host"} <= owner.keys() else ""
