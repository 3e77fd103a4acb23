"""How large a reproduction is, from `scales.toml`, and the cell that a row of a table is at that scale."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from caprompt.backbones.registry import MODELS, find_file
from caprompt.backbones.weights import list_packaged
from caprompt.data.datasets._locations import located
from caprompt.data.datasets.registry import DATASETS
from caprompt.errors import InputError, OptionError, UnknownNameError
from caprompt.experiments.config import RunConfig, build_run_config, preset_settings, resolve_config
from caprompt.experiments.grid import Cell, Measure
from caprompt.methods import get_method
from caprompt.utils.files import read_toml

__all__ = ["NO_BACKBONE", "NO_DATA", "OTHER_SCALE", "Scale", "backbone_title", "scale", "scales"]

NO_DATA, NO_BACKBONE, OTHER_SCALE = "data not at hand", "backbone not at hand", "other scale"
RUN_SETTINGS = frozenset(RunConfig.model_fields) - {"options"}


@dataclass(frozen=True)
class Scale:
    """What is the same for every row of every target."""

    name: str
    summary: str
    preset: str
    backbone: str
    datasets: tuple[str, ...]  # run beside those of the paper
    paper_data: bool
    paper_backbones: bool
    seeds: int
    settings: Mapping[str, Any] = field(default_factory=dict)

    def columns(self, paper: tuple[str, ...]) -> tuple[str, ...]:
        """The data sets of a target that has these in the paper."""
        return tuple(dict.fromkeys((*self.datasets, *paper)))

    def obstacle(self, dataset: str, backbone: str) -> str:
        """Why nothing can be run on this data set with this backbone ("" for the scale's own) here; "" if it can."""
        if not (dataset in self.datasets or self.paper_data) or (backbone and not self.paper_backbones):
            return OTHER_SCALE
        if not data_at_hand(dataset):
            return NO_DATA
        return "" if backbone_at_hand(backbone or self.backbone) else NO_BACKBONE

    def cell(
        self, method: str, options: Mapping[str, Any], dataset: str, backbone: str, seed: int, measures: tuple[Measure, ...]
    ) -> Cell:
        """The experiment behind one figure. No backbone means the scale's own."""
        chosen = {"method": method, "dataset": dataset, "backbone": backbone or self.backbone, "seed": seed}
        usual = preset_settings(self.preset, {**chosen, **options})
        config = build_run_config({**usual, **self.fitting(method), **chosen, **options})
        return Cell(resolve_config(config), measures)

    def fitting(self, method: str) -> dict[str, Any]:
        """The scale's settings, without options that this method does not have."""
        known = RUN_SETTINGS | get_method(method).options_class.model_fields.keys()
        return {name: value for name, value in self.settings.items() if name in known}


def backbone_title(backbone: str) -> str:
    """What a backbone is called in tables: its name, or that of its weights file.

    >>> backbone_title("vit_base_patch16_224.dino"), backbone_title("/weights/deit_tiny.safetensors")
    ('vit_base_patch16_224.dino', 'deit_tiny')
    """
    return Path(backbone).name.removesuffix(".safetensors")


def scales() -> dict[str, Scale]:
    """All of them, the largest first."""
    tables = read_toml(Path(__file__).with_name("scales.toml"))
    return {name: Scale(name=name, **{**table, "datasets": tuple(table["datasets"])}) for name, table in tables.items()}


def scale(name: str, *, backbone: str | None = None, seeds: int | None = None, settings: Mapping[str, Any] | None = None) -> Scale:
    """One by name, with another backbone or other settings than it comes with."""
    if name not in scales():
        raise UnknownNameError("scale", name, scales())
    found = scales()[name]
    if seeds is not None and seeds < 1:
        raise OptionError(f"option 'seeds' must be at least 1, not {seeds}")
    if backbone is not None and backbone not in MODELS and not backbone_at_hand(backbone):
        raise InputError(f"there is no backbone '{backbone}'; give a name of 'caprompt backbones' or a weights file")
    changed = {"backbone": backbone or found.backbone, "seeds": seeds or found.seeds}
    return Scale(**{**vars(found), **changed, "settings": {**found.settings, **(settings or {})}})


def data_at_hand(dataset: str) -> bool:
    """Can this data set be read without a download?"""
    info = DATASETS.get(dataset)
    if info is None:
        return Path(dataset).exists()
    return info.official is None or located(info.official) is not None


@cache
def backbone_at_hand(name: str) -> bool:
    """Is this backbone here, or can it be fetched?"""
    if name in list_packaged() or Path(name).is_file():
        return True
    try:
        return name in MODELS and bool(find_file(MODELS[name]))
    except InputError:
        return False
