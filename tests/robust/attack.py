"""What an attack is, and how the result of one try is judged."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

from caprompt.errors import CapromptError

#: Outcomes of a try. The first two are as they should be; `memory` is more than MAX_BYTES, `lost` is a model that was changed or
#: cannot be read although the command failed, or that is neither the old nor the new one.
REFUSED, ACCEPTED, CRASHED, LOST, HUNG, MEMORY = OUTCOMES = ("refused", "accepted", "crashed", "lost", "hung", "memory")
GOOD = (REFUSED, ACCEPTED)
MAX_BYTES = 2 * 1000**3
MAX_MESSAGE = 1500  # characters of a sentence


class RefusedError(Exception):
    """A command has refused its input as it should: with an exit status and one line."""


class LostError(Exception):
    """A model is gone, unreadable or another one."""


class InvalidError(Exception):
    """Input was accepted, but the result is not valid."""


@dataclass(frozen=True)
class Attack:
    """A kind of attack: `damage` makes the material of a try in an empty folder, and `use` does with it what users do.

    `use` returns for an accepted input, raises `CapromptError` or `RefusedError` for a refused one, and `LostError` for a lost
    model. A try is determined by its seed and number, which `damage` gets, and `use` by the material.
    """

    name: str
    title: str
    tries: int
    sample: int  # tries of the short form
    prepare: Callable[[Path], Any]  # what all tries need, made once in a folder of its own
    damage: Callable[[Any, Path, Random, int], str]  # returns a description
    use: Callable[[Any, Path], None]
    limit: float = 10.0  # seconds of a try, after which it hangs


def make_random(seed: int, number: int) -> Random:
    """Return the source of all randomness of one try."""
    return Random(f"{seed}-{number}")


def judge(use: Callable[[], None]) -> tuple[str, str]:
    """Use the material of a try; return the outcome and what was said."""
    try:
        use()
    except RefusedError as error:
        return REFUSED, str(error)
    except CapromptError as error:
        message = str(error)
        is_sentence = len(message.splitlines()) == 1 and len(message) <= MAX_MESSAGE
        return (REFUSED, message) if is_sentence else (CRASHED, f"not one sentence: {message[:MAX_MESSAGE]!r}")
    except LostError as error:
        return LOST, str(error)
    except Exception:
        return CRASHED, traceback.format_exc()
    return ACCEPTED, ""
