"""Paths as users write them."""

from __future__ import annotations

from pathlib import Path

from caprompt.errors import InputError

__all__ = ["expand_user"]


def expand_user(path: str | Path) -> Path:
    """Replace '~' or '~user' at the start of a path by the home folder; a file that is really named so is meant itself.

    >>> expand_user("photos/cat.jpg").as_posix()
    'photos/cat.jpg'
    >>> expand_user("~no such user/photos")
    Traceback (most recent call last):
    caprompt.errors.InputError: '~no such user/photos' is in the home folder of a user who does not exist; check the spelling
    """
    path = Path(path)
    try:
        return path.expanduser()
    except RuntimeError:
        if path.exists() or path.is_symlink():
            return path
        raise InputError(f"'{path}' is in the home folder of a user who does not exist; check the spelling") from None
