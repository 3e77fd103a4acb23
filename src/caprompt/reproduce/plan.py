"""The cells that a target needs at a scale, and the record of them from which its table can be built again."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from caprompt.errors import InputError, ModelFolderError, OptionError, did_you_mean
from caprompt.experiments.config import RunConfig
from caprompt.experiments.grid import Cell, is_done
from caprompt.methods import get_method
from caprompt.reproduce.evidence import EntryKey, Evidence, Row, Target, resolve_protocol
from caprompt.reproduce.measures import concavity
from caprompt.reproduce.scales import NO_DATA, OTHER_SCALE, Scale
from caprompt.reproduce.targets.registry import TARGETS
from caprompt.utils.files import write_json

__all__ = ["check_released", "check_settings", "explain_no_cells", "merge_cells", "plan_target", "read_record", "write_record"]

FIXED = ("method", "dataset", "backbone", "seed", "give_task", "joint", "options", "protocol")  # set by the target


def plan_target(target: Target, scale: Scale, cells_dir: Path, protocol: str = "honest") -> tuple[Evidence, list[Cell]]:
    """Return a target's table entries, and the cells behind them that can be run here or have been."""
    planned: dict[EntryKey, tuple[str, ...] | str] = {}
    cells: list[Cell] = []
    # The scale's own backbone is listed beside those of the paper only where these are not run.
    paper_only = len(target.backbones) > 1 and scale.paper_backbones
    for row in target.rows:
        for dataset in scale.list_datasets(target.datasets):
            for backbone in target.backbones.values():
                if backbone or not paper_only:
                    own = _list_cells(row, dataset, backbone, target, scale, cells_dir, protocol)
                    cells += [] if isinstance(own, str) else own
                    names = own if isinstance(own, str) else tuple(cell.name for cell in own)
                    planned[row.label, dataset, backbone] = names
    return Evidence(target, scale, cells_dir, protocol, planned), cells


def _list_cells(
    row: Row, dataset: str, backbone: str, target: Target, scale: Scale, cells_dir: Path, protocol: str
) -> list[Cell] | str:
    """Return the cell of each seed, or why none can be run; finished cells need neither data nor backbone."""
    why = scale.find_obstacle(dataset, backbone)
    if why == OTHER_SCALE:
        return why
    options = {**row.options, "protocol": "released"} if resolve_protocol(row, protocol) == "released" else row.options
    own = replace(scale, preset=target.preset or scale.preset)
    cells = [own.build_cell(row.method, options, dataset, backbone, seed, target.measures) for seed in range(scale.seeds)]
    return [cell for cell in cells if is_done(cells_dir / cell.name, cell.measures)] or why if why else cells


def explain_no_cells(evidence: Evidence) -> str:
    """Return the error message for a target without any cell that can be run."""
    obstacles = {(dataset, why) for (_, dataset, _), why in evidence.planned.items() if isinstance(why, str)}
    reasons = "; ".join(sorted(f"{dataset}: {why}" for dataset, why in obstacles))
    hint = "get data with 'caprompt datasets --download NAME'" if NO_DATA in reasons else "give a weights file with backbone=..."
    return f"nothing of {evidence.target.name} can be run here ({reasons}); {hint}, or take scale='tiny'"


# -- the record ----------------------------------------------------------------------------------------------------------------


def write_record(evidence: Evidence, path: Path) -> None:
    """Save which cells a table is built from."""
    planned = [[*key, names] for key, names in evidence.planned.items()]
    document = {"target": evidence.target.name, "scale": vars(evidence.scale), "protocol": evidence.protocol, "planned": planned}
    write_json(path, document)


def read_record(path: Path, cells_dir: Path) -> Evidence:
    """Read a record of `write_record`, for cells in `cells_dir`."""
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
        entries = {(row, data, backbone): names for row, data, backbone, names in document["planned"]}
        planned = {key: names if isinstance(names, str) else tuple(names) for key, names in entries.items()}
        scale = Scale(**{**document["scale"], "datasets": tuple(document["scale"]["datasets"])})
        return Evidence(TARGETS[document["target"]], scale, cells_dir, document["protocol"], planned)
    except (OSError, ValueError, KeyError, TypeError) as error:
        message = f"'{path}' is damaged or of another version of caprompt; write it again with 'caprompt reproduce'"
        raise ModelFolderError(message) from error


# -- checks ----------------------------------------------------------------------------------------------------------------------


def check_settings(settings: dict[str, Any], targets: list[Target]) -> dict[str, Any]:
    """Return the settings if each is known to at least one method of the targets and none is fixed by the targets."""
    methods = {row.method for target in targets for row in target.rows}
    known = {name for method in methods for name in get_method(method).options_class.model_fields}
    known = (known | RunConfig.model_fields.keys()) - set(FIXED)
    for name in settings:
        if name not in known:
            hint = did_you_mean(name, known)
            raise OptionError(f"option '{name}' cannot be set here{hint}; there are: {', '.join(sorted(known))}")
    return settings


def check_released(target: Target) -> Target:
    """Return the target if it makes sense under protocol 'released'."""
    if concavity in target.measures:
        raise InputError(f"{target.name} is about an image's own prompts; it is not available with protocol='released'")
    return target


def merge_cells(cells: list[Cell]) -> list[Cell]:
    """Return each experiment once, in order of first use, with the measures of all targets that need it."""
    by_name: dict[str, Cell] = {}
    for cell in cells:
        before = by_name.get(cell.name)
        measures = dict.fromkeys([*(before.measures if before else ()), *cell.measures])
        by_name[cell.name] = Cell(cell.config, tuple(measures))
    return list(by_name.values())
