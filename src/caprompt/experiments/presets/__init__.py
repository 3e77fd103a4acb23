"""Presets: named settings in TOML files beside this module. `default` is what we recommend: the options' own defaults.

A file has a table per method; the table `["*"]` applies to every method, also to those that have no table of their own.
Within a table, `[METHOD.SETTING.VALUE]` overrides the table where a setting has that value: the dataset, the tag of the backbone,
or an option that was set. The last such table in the file wins.
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
EVERY_METHOD = "*"
NO_OVERRIDES: Mapping[str, Any] = MappingProxyType({})


def list_presets() -> list[str]:
    """Return the names of all presets."""
    return sorted([DEFAULT, *(path.stem for path in HERE.glob("*.toml"))])


def load_preset(name: str, method: str, dataset: str, backbone: str, overrides: Mapping[str, Any] = NO_OVERRIDES) -> dict[str, Any]:
    """Return the settings of a preset for a method on a dataset and a backbone, where these other settings were chosen.

    >>> load_preset("paper", "caprompt", "cub200", "vit_base_patch16_224.orig_in21k")["batch_size"]
    64
    >>> load_preset("budget", "linear", "digits", "vit_mini_patch8_64.tin200_distilled")["epochs"]
    5
    >>> backbone = "vit_mini_patch8_64.tin200_distilled"
    >>> load_preset("budget", "caprompt", "digits", backbone, {"classifier": "aligned"})["learning_rate"]
    0.003
    """
    if name not in list_presets():
        raise UnknownNameError("preset", name, list_presets())
    if name == DEFAULT:
        return {}
    tables = read_toml(HERE / f"{name}.toml")
    if not {method, EVERY_METHOD} & tables.keys():
        raise InputError(f"preset '{name}' has no settings for {method}; it has: {', '.join(tables)}")
    known = {**overrides, "dataset": dataset, "backbone": backbone.rpartition(".")[2]}
    settings: dict[str, Any] = {}
    for table in (tables.get(EVERY_METHOD, {}), tables.get(method, {})):
        special = {key: value for key, value in table.items() if isinstance(value, dict)}
        settings |= {key: value for key, value in table.items() if key not in special}
        for setting, by_value in special.items():
            settings |= by_value.get(str(known.get(setting)), {})
    return settings
