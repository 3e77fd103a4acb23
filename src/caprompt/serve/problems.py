"""Refusals of requests: an HTTP status and one sentence."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from starlette.exceptions import HTTPException

from caprompt.errors import CapromptError

__all__ = ["Problem", "name_folder", "refuse"]


class Problem(HTTPException):
    """A request that cannot be answered, with the status and the sentence to say so."""

    def __init__(self, status: int, sentence: str, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(status, sentence, dict(headers) if headers else None)


def name_folder(message: str, folder: Path, name: str) -> str:
    """Return a message of the library with the name of a model for its folder: clients need not know where it is.

    >>> name_folder("'/srv/models/pets' is damaged", Path("/srv/models/pets"), "pets")
    "'pets' is damaged"
    """
    return message.replace(str(folder), name)


@contextmanager
def refuse(status: int, folder: Path, name: str) -> Iterator[None]:
    """Turn errors of the library about a model into a refusal with the same sentence."""
    try:
        yield
    except CapromptError as error:
        raise Problem(status, name_folder(str(error), folder, name)) from error
