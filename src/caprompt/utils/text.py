"""Names in sentences, and text that can be printed anywhere."""

from __future__ import annotations

import re
from collections.abc import Sequence

__all__ = ["escape_bytes", "escape_controls", "join_names"]

_SURROGATE = re.compile("[\ud800-\udfff]")
_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]")  # also those that change the direction


def escape_bytes(text: str) -> str:
    r"""Return text that can be encoded: bytes of a file name that are not UTF-8 become `\xe9`.

    >>> print(escape_bytes("caf\udce9.png"), escape_bytes("café.png"))
    caf\xe9.png café.png
    """
    return _SURROGATE.sub(lambda match: _escape_surrogate(ord(match.group())), text)


def _escape_surrogate(code: int) -> str:
    return f"\\x{code - 0xDC00:02x}" if 0xDC80 <= code <= 0xDCFF else f"\\u{code:04x}"  # as Python decodes file names


def escape_controls(text: str) -> str:
    r"""Return text that cannot move the cursor or change colors of a terminal: control characters become `\x1b`.

    >>> print(escape_controls("a\x1b[31mb\nc.png"))
    a\x1b[31mb\nc.png
    """
    return _CONTROL.sub(lambda match: match.group().encode("unicode_escape").decode(), escape_bytes(text))


def join_names(names: Sequence[str], limit: int = 12) -> str:
    """Return names as a list, of which at most `limit` are spelled out.

    >>> join_names(["cat", "dog"]), join_names([f"c{number}" for number in range(10_000)], limit=2)
    ('cat, dog', 'c0, c1 and 9,998 more')
    """
    more = len(names) - limit
    return ", ".join(names[:limit]) + (f" and {more:,} more" if more > 0 else "")
