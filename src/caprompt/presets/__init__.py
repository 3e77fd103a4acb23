"""Presets: settings by name, kept as TOML files beside this one. `default` is what we recommend: the options' own defaults.

A file has a table per method; the table `["*"]` holds for every method, also for those that have no table of their own. Within a
table, `[METHOD.dataset.NAME]` and `[METHOD.backbone.TAG]` change what the table says, in this order.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from caprompt.errors import InputError, UnknownNameError

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

__all__ = ["names", "preset"]

HERE = Path(__file__).parent
DEFAULT = "default"
EVERY = "*"


def names() -> list[str]:
    """The presets there are."""
    return sorted([DEFAULT, *(path.stem for path in HERE.glob("*.toml"))])


def preset(name: str, method: str, dataset: str, backbone: str) -> dict[str, Any]:
    """The settings of a preset for a method on a data set and a backbone; its more special parts win.

    >>> preset("paper", "caprompt", "cub200", "vit_base_patch16_224.orig_in21k")["batch_size"]
    64
    >>> preset("budget", "linear", "digits", "vit_mini_patch8_64.tin200_distilled")["epochs"]
    8
    """
    if name not in names():
        raise UnknownNameError("preset", name, names())
    if name == DEFAULT:
        return {}
    tables = tomllib.loads((HERE / f"{name}.toml").read_text(encoding="utf-8"))
    if not {method, EVERY} & tables.keys():
        raise InputError(f"preset '{name}' says nothing of {method}; it has: {', '.join(tables)}")
    tag = backbone.rpartition(".")[2]
    chosen: dict[str, Any] = {}
    for table in (tables.get(EVERY, {}), tables.get(method, {})):
        common = {key: value for key, value in table.items() if key not in ("dataset", "backbone")}
        chosen |= {**common, **table.get("dataset", {}).get(dataset, {}), **table.get("backbone", {}).get(tag, {})}
    return chosen
