"""Writing of TOML: flat tables of numbers, texts and lists, as `caprompt run --config` reads them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from caprompt.errors import InputError

__all__ = ["format_toml"]


def format_toml(values: Mapping[str, Any]) -> str:
    """Return a table as TOML.

    >>> print(format_toml({"dataset": "digits", "learning_rate": 1e-05, "crop_scale": (0.3, 1.0), "masked": True}), end="")
    dataset = "digits"
    learning_rate = 1e-05
    crop_scale = [0.3, 1.0]
    masked = true
    """
    return "".join(f"{name} = {_format_value(value)}\n" for name, value in values.items())


def _format_value(value: Any) -> str:
    """Format a value.

    >>> _format_value('a "b"\\n\\x7f'), _format_value([["cat", "dog"], ["cow"]])
    ('"a \\\\"b\\\\"\\\\n\\\\u007f"', '[["cat", "dog"], ["cow"]]')
    """
    if isinstance(value, str):
        try:
            value.encode()
        except UnicodeEncodeError:
            raise InputError(f"the name {value!r} is not valid Unicode, so that no TOML file can hold it; rename it") from None
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(_format_value, value))}]"
    return json.dumps(value) if isinstance(value, bool) else repr(value)
