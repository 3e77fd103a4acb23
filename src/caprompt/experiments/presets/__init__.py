"""Presets: named settings in TOML files beside this module. `default` is what we recommend: the options' own defaults.

A file has a table per method; the table `["*"]` applies to every method, also to those that have no table of their own.
Within a table, `[METHOD.SETTING.VALUE]` overrides the table where a setting has that value: the dataset, the tag of the backbone,
or an option that was set. The last such table in the file wins. Such a table may have tables of its own:
`[METHOD.dataset.NAME.backbone.TAG]` is for a backbone on a dataset.
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
    return {**_select(tables.get(EVERY_METHOD, {}), known), **_select(tables.get(method, {}), known)}


def _select(table: Mapping[str, Any], known: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of a table, overridden by those of its tables that fit the known settings.

    >>> table = {"alpha": 5, "dataset": {"cub200": {"alpha": 1, "backbone": {"dino": {"alpha": 0.1}}}}}
    >>> [_select(table, {"dataset": "cub200", "backbone": tag}) for tag in ("dino", "augreg_in21k")]
    [{'alpha': 0.1}, {'alpha': 1}]
    """
    settings = {key: value for key, value in table.items() if not isinstance(value, dict)}
    for setting, by_value in table.items():
        if isinstance(by_value, dict):
            settings |= _select(by_value.get(str(known.get(setting)), {}), known)
    return settings
