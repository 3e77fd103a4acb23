"""Text that a spreadsheet program opens as text."""

from __future__ import annotations

import re

__all__ = ["escape_formula"]

_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?")


def escape_formula(text: str) -> str:
    """Put an apostrophe before text that a spreadsheet program would run as a formula; numbers stay as they are.

    >>> escape_formula("=HYPERLINK(1)"), escape_formula("@cat"), escape_formula("-7.5"), escape_formula("-x"), escape_formula("cat")
    ("'=HYPERLINK(1)", "'@cat", '-7.5', "'-x", 'cat')
    """
    is_formula = text.startswith(("=", "+", "-", "@", "\t", "\r")) and not _NUMBER.fullmatch(text)
    return f"'{text}" if is_formula else text
