"""Sizes of a reproduction, from `scales.toml`, and the cell that a table row stands for at each of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from caprompt.backbones.registry import MODELS, find_file
from caprompt.backbones.weights import list_packaged
from caprompt.data.datasets._locations import find_dataset
from caprompt.data.datasets.registry import DATASETS
from caprompt.errors import InputError, OptionError, UnknownNameError
from caprompt.experiments.config import RunConfig, build_run_config, load_preset_settings, resolve_config
from caprompt.experiments.grid import Cell, Measure
from caprompt.methods import get_method
from caprompt.utils.files import read_toml

__all__ = ["NO_BACKBONE", "NO_DATA", "OTHER_SCALE", "Scale", "format_backbone_title", "get_scale", "load_scales"]

NO_DATA, NO_BACKBONE, OTHER_SCALE = "data not at hand", "backbone not at hand", "other scale"
RUN_SETTINGS = frozenset(RunConfig.model_fields) - {"options"}


@dataclass(frozen=True)
class Scale:
    """Settings that all rows of all targets share."""

    name: str
    summary: str
    preset: str
    backbone: str
    datasets: tuple[str, ...]  # run in addition to those of the paper
    paper_data: bool
    paper_backbones: bool
    seeds: int
    settings: Mapping[str, Any] = field(default_factory=dict)

    def list_datasets(self, paper: tuple[str, ...]) -> tuple[str, ...]:
        """Return the datasets of a target that has these in the paper."""
        return tuple(dict.fromkeys((*self.datasets, *paper)))

    def find_obstacle(self, dataset: str, backbone: str) -> str:
        """Return why this dataset cannot be run with this backbone here; "" if it can. A backbone of "" is the scale's own."""
        if not (dataset in self.datasets or self.paper_data) or (backbone and not self.paper_backbones):
            return OTHER_SCALE
        if not has_data(dataset):
            return NO_DATA
        return "" if has_backbone(backbone or self.backbone) else NO_BACKBONE

    def build_cell(
        self, method: str, options: Mapping[str, Any], dataset: str, backbone: str, seed: int, measures: tuple[Measure, ...]
    ) -> Cell:
        """Return the experiment behind one table entry; a backbone of "" is the scale's own."""
        fixed = {"method": method, "dataset": dataset, "backbone": backbone or self.backbone, "seed": seed}
        preset = load_preset_settings(self.preset, {**fixed, **options})
        config = build_run_config({**preset, **self._select_settings(method), **fixed, **options})
        return Cell(resolve_config(config), measures)

    def _select_settings(self, method: str) -> dict[str, Any]:
        """Return the scale's settings without options that this method does not have."""
        known = RUN_SETTINGS | get_method(method).options_class.model_fields.keys()
        return {name: value for name, value in self.settings.items() if name in known}


def format_backbone_title(backbone: str) -> str:
    """Return the title of a backbone in tables: its name, or that of its weights file.

    >>> format_backbone_title("vit_base_patch16_224.dino"), format_backbone_title("/weights/deit_tiny.safetensors")
    ('vit_base_patch16_224.dino', 'deit_tiny')
    """
    return Path(backbone).name.removesuffix(".safetensors")


def load_scales() -> dict[str, Scale]:
    """Load all scales, the largest first."""
    tables = read_toml(Path(__file__).with_name("scales.toml"))
    return {name: Scale(name=name, **{**table, "datasets": tuple(table["datasets"])}) for name, table in tables.items()}


def get_scale(
    name: str, *, backbone: str | None = None, seeds: int | None = None, settings: Mapping[str, Any] | None = None
) -> Scale:
    """Return a scale by name, with its backbone, number of seeds or settings overridden."""
    if name not in load_scales():
        raise UnknownNameError("scale", name, load_scales())
    scale = load_scales()[name]
    if seeds is not None and seeds < 1:
        raise OptionError(f"option 'seeds' must be at least 1, not {seeds}")
    if backbone is not None and backbone not in MODELS and not has_backbone(backbone):
        raise InputError(f"there is no backbone '{backbone}'; give a name of 'caprompt backbones' or a weights file")
    overrides = {"backbone": backbone or scale.backbone, "seeds": seeds or scale.seeds}
    return Scale(**{**vars(scale), **overrides, "settings": {**scale.settings, **(settings or {})}})


def has_data(dataset: str) -> bool:
    """Return whether a dataset can be read without a download."""
    info = DATASETS.get(dataset)
    if info is None:
        return Path(dataset).exists()
    return info.official is None or find_dataset(info.official) is not None


@cache
def has_backbone(name: str) -> bool:
    """Return whether a backbone is on this machine or can be downloaded."""
    if name in list_packaged() or Path(name).is_file():
        return True
    try:
        return name in MODELS and bool(find_file(MODELS[name]))
    except InputError:
        return False
