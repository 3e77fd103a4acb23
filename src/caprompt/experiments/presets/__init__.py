"""Presets: settings by name, kept as TOML files beside this one. `default` is what we recommend: the options' own defaults.

A file has a table per method; the table `["*"]` holds for every method, also for those that have no table of their own. Within a
table, `[METHOD.SETTING.VALUE]` changes what the table says where a setting has that value: the data set, the tag of the backbone,
or an option that is given. The last such table in the file wins.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from caprompt.errors import InputError, UnknownNameError
from caprompt.utils.files import read_toml

__all__ = ["list_presets", "load_preset"]

HERE = Path(__file__).parent
DEFAULT = "default"
EVERY = "*"
NOTHING_GIVEN: Mapping[str, Any] = MappingProxyType({})


def list_presets() -> list[str]:
    """The presets there are."""
    return sorted([DEFAULT, *(path.stem for path in HERE.glob("*.toml"))])


def load_preset(name: str, method: str, dataset: str, backbone: str, given: Mapping[str, Any] = NOTHING_GIVEN) -> dict[str, Any]:
    """The settings of a preset for a method on a data set and a backbone, where these others are given; its special parts win.

    >>> load_preset("paper", "caprompt", "cub200", "vit_base_patch16_224.orig_in21k")["batch_size"]
    64
    >>> load_preset("budget", "linear", "digits", "vit_mini_patch8_64.tin200_distilled")["epochs"]
    5
    >>> load_preset("budget", "caprompt", "digits", "vit_mini_patch8_64.tin200_distilled", {"classifier": "aligned"})["learning_rate"]
    0.003
    """
    if name not in list_presets():
        raise UnknownNameError("preset", name, list_presets())
    if name == DEFAULT:
        return {}
    tables = read_toml(HERE / f"{name}.toml")
    if not {method, EVERY} & tables.keys():
        raise InputError(f"preset '{name}' says nothing of {method}; it has: {', '.join(tables)}")
    known = {**given, "dataset": dataset, "backbone": backbone.rpartition(".")[2]}
    chosen: dict[str, Any] = {}
    for table in (tables.get(EVERY, {}), tables.get(method, {})):
        special = {key: value for key, value in table.items() if isinstance(value, dict)}
        chosen |= {key: value for key, value in table.items() if key not in special}
        for setting, by_value in special.items():
            chosen |= by_value.get(str(known.get(setting)), {})
    return chosen
