"""Arguments that commands share, and the parsing of `--config FILE`, `--set key=value`, `--tasks 1,4,2` and `--cycles N`."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter

from caprompt.errors import OptionError
from caprompt.utils.files import read_toml

__all__ = [
    "AsJson",
    "Cluster",
    "Config",
    "Cpus",
    "Cycles",
    "Device",
    "Gpus",
    "Set",
    "SkipBad",
    "collect_settings",
    "parse_cycles",
    "parse_tasks",
    "parse_value",
]

Set = Annotated[list[str] | None, Parameter(name="--set", help="Option as key=value; may be repeated.", negative=())]
Config = Annotated[Path | None, Parameter(help="TOML file of settings and options; --set and flags override it.")]
Device = Annotated[str, Parameter(help="cpu, cuda, or auto.")]
SkipBad = Annotated[bool, Parameter(help="Skip images that cannot be read, and list them.")]
AsJson = Annotated[bool, Parameter(name="--json", help="Print JSON.")]
Cluster = Annotated[
    str | None,
    Parameter(
        help="Run on a cluster: ray://HOST:10001, HOST:6379, auto or local for Ray, or slurm:partition=NAME,time=MINUTES "
        "(docs/cluster.md)."
    ),
]
Cpus = Annotated[float, Parameter(help="CPU cores for each worker of a cluster.")]
Gpus = Annotated[float | None, Parameter(help="GPUs for each worker of a cluster, or a share of one, such as 0.25.")]
Cycles = Annotated[str | None, Parameter(help="Forward passes per image: a number, or auto.")]


def collect_settings(config: Path | None, assignments: Iterable[str]) -> dict[str, Any]:
    """Return the settings of a TOML file, overridden by assignments; later ones win.

    >>> collect_settings(None, ["epochs=3", "cycles=auto"])
    {'epochs': 3, 'cycles': 'auto'}
    """
    return {**(read_toml(config) if config else {}), **dict(_parse_assignment(text) for text in assignments)}


def _parse_assignment(text: str) -> tuple[str, Any]:
    """Parse one `key=value`.

    >>> _parse_assignment("crop_scale=0.6,1")
    ('crop_scale', [0.6, 1])
    """
    key, equals, value = text.partition("=")
    if not equals or not key.strip():
        raise OptionError(f"'--set {text}' should read '--set key=value'")
    return key.strip(), parse_value(value.strip())


def parse_value(text: str) -> Any:
    """Parse a typed value: a number, true or false, a comma-separated list, or a string.

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
    """Parse tasks given as their number, their sizes, or their class names.

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


def parse_cycles(text: str | None) -> dict[str, Any]:
    """Return the options that `--cycles` sets.

    >>> parse_cycles(None), parse_cycles("3"), parse_cycles("auto")
    ({}, {'cycles': 3}, {'cycles': 'auto'})
    """
    if text is None or text == "auto":
        return {} if text is None else {"cycles": text}
    try:
        return {"cycles": int(text)}
    except ValueError:
        raise OptionError(f"--cycles takes a whole number or auto, not '{text}'") from None
