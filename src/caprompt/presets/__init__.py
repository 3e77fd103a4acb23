"""Presets: settings by name, kept as TOML files beside this one. `default` is what we recommend: the options' own defaults."""

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


def names() -> list[str]:
    """The presets there are."""
    return sorted([DEFAULT, *(path.stem for path in HERE.glob("*.toml"))])


def preset(name: str, method: str, dataset: str, backbone: str) -> dict[str, Any]:
    """The settings of a preset for a method on a data set and a backbone; its more special parts win.

    >>> preset("paper", "caprompt", "cub200", "vit_base_patch16_224.orig_in21k")["batch_size"]
    64
    """
    if name not in names():
        raise UnknownNameError("preset", name, names())
    if name == DEFAULT:
        return {}
    methods = tomllib.loads((HERE / f"{name}.toml").read_text(encoding="utf-8"))
    if method not in methods:
        raise InputError(f"preset '{name}' says nothing of {method}; it has: {', '.join(methods)}")
    common = dict(methods[method])
    by_dataset, by_backbone = common.pop("dataset", {}), common.pop("backbone", {})
    tag = backbone.rpartition(".")[2]
    return {**common, **by_dataset.get(dataset, {}), **by_backbone.get(tag, {})}
