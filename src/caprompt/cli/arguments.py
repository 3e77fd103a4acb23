"""Settings from the command line: `--config file.toml`, `--set key=value`, `--tasks 1,4,2`; later ones win."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from caprompt.errors import InputError, OptionError, did_you_mean

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

__all__ = ["divided", "gathered", "parse_tasks", "parse_value"]


def gathered(config: Path | None, assignments: Iterable[str]) -> dict[str, Any]:
    """Settings of a TOML file, overridden by assignments.

    >>> gathered(None, ["epochs=3", "cycles=auto"])
    {'epochs': 3, 'cycles': 'auto'}
    """
    return {**(read_toml(config) if config else {}), **dict(parse_assignment(text) for text in assignments)}


def read_toml(path: Path) -> dict[str, Any]:
    """A flat TOML file of settings."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"the configuration file '{path}' cannot be read: {error}") from error
    except tomllib.TOMLDecodeError as error:
        raise InputError(f"'{path}' is not valid TOML: {error}") from error


def parse_assignment(text: str) -> tuple[str, Any]:
    """One `key=value`.

    >>> parse_assignment("crop_scale=0.6,1")
    ('crop_scale', [0.6, 1])
    """
    key, equals, value = text.partition("=")
    if not equals or not key.strip():
        raise OptionError(f"'--set {text}' should read '--set key=value'")
    return key.strip(), parse_value(value.strip())


def parse_value(text: str) -> Any:
    """A value as people type it: a number, true or false, a list with commas, or a word.

    >>> parse_value("3e-3"), parse_value("true"), parse_value("auto"), parse_value("0,2")
    (0.003, True, 'auto', [0, 2])
    """
    if "," in text and not text.startswith(("[", '"')):
        return [parse_value(part.strip()) for part in text.split(",")]
    try:
        return json.loads(text)
    except ValueError:
        return text


def parse_tasks(text: str) -> int | tuple[int, ...] | tuple[tuple[str, ...], ...]:
    """Tasks by number, by sizes, or by class names.

    >>> parse_tasks("5"), parse_tasks("1,4,2"), parse_tasks("cat,dog;cow")
    (5, (1, 4, 2), (('cat', 'dog'), ('cow',)))
    """
    if ";" in text:
        return tuple(tuple(name.strip() for name in group.split(",")) for group in text.split(";"))
    try:
        sizes = tuple(int(part) for part in text.split(","))
    except ValueError as error:
        raise OptionError(f"tasks '{text}' should be a number (5), sizes (1,4,2) or class names (cat,dog;cow)") from error
    return sizes[0] if len(sizes) == 1 else sizes


def divided(
    settings: Mapping[str, Any], own: Sequence[str], options: Sequence[str], owner: str
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Divide flat settings into a command's own and the method's options; a name that is neither gets a hint.

    >>> divided({"seed": 1, "epochs": 2}, ["seed"], ["epochs"], "caprompt")
    ({'seed': 1}, {'epochs': 2})
    """
    known = sorted({*own, *options})
    for key in settings:
        if key not in known:
            raise OptionError(f"unknown option '{key}' for {owner}{did_you_mean(key, known)}; there are: {', '.join(known)}")
    return ({k: v for k, v in settings.items() if k in own}, {k: v for k, v in settings.items() if k not in own})
