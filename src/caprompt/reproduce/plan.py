"""Which cells a target needs at a scale, and the record of them from which its table can be made again anywhere."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from caprompt.errors import InputError, ModelFolderError, OptionError, did_you_mean
from caprompt.experiments.config import RunConfig
from caprompt.experiments.grid import Cell, is_done
from caprompt.methods import get_method
from caprompt.reproduce.evidence import Evidence, Place, Row, Target, kind_of
from caprompt.reproduce.measures import concavity
from caprompt.reproduce.scales import NO_DATA, OTHER_SCALE, Scale
from caprompt.reproduce.targets.registry import TARGETS
from caprompt.utils.files import write_json

__all__ = ["checked", "explain_no_cells", "leaking", "merged", "plan", "read_record", "write_record"]

FIXED = ("method", "dataset", "backbone", "seed", "give_task", "joint", "options", "protocol")  # the target says these


def plan(target: Target, scale: Scale, home: Path, protocol: str = "honest") -> tuple[Evidence, list[Cell]]:
    """A target's places, and the cells behind them that can be run here or have been."""
    planned: dict[Place, tuple[str, ...] | str] = {}
    cells: list[Cell] = []
    # The scale's own backbone stands beside those of the paper only where these are not run.
    paper_only = len(target.backbones) > 1 and scale.paper_backbones
    for row in target.rows:
        for dataset in scale.columns(target.datasets):
            for backbone in target.backbones.values():
                if backbone or not paper_only:
                    found = list_cells(row, dataset, backbone, target, scale, home, protocol)
                    cells += [] if isinstance(found, str) else found
                    names = found if isinstance(found, str) else tuple(cell.name for cell in found)
                    planned[row.label, dataset, backbone] = names
    return Evidence(target, scale, home, protocol, planned), cells


def list_cells(row: Row, dataset: str, backbone: str, target: Target, scale: Scale, home: Path, protocol: str) -> list[Cell] | str:
    """The cell of each seed, or why they cannot be run; those that were run elsewhere need neither data nor backbone."""
    why = scale.obstacle(dataset, backbone)
    if why == OTHER_SCALE:
        return why
    options = {**row.options, "protocol": "released"} if kind_of(row, protocol) == "released" else row.options
    own = replace(scale, preset=target.preset or scale.preset)
    cells = [own.cell(row.method, options, dataset, backbone, seed, target.measures) for seed in range(scale.seeds)]
    return [cell for cell in cells if is_done(home / cell.name, cell.measures)] or why if why else cells


def explain_no_cells(evidence: Evidence) -> str:
    """What to say where there is no cell at all."""
    found = {(dataset, why) for (_, dataset, _), why in evidence.planned.items() if isinstance(why, str)}
    reasons = "; ".join(sorted(f"{dataset}: {why}" for dataset, why in found))
    hint = "get data with 'caprompt datasets --download NAME'" if NO_DATA in reasons else "give a weights file with --backbone"
    return f"nothing of {evidence.target.name} can be run here ({reasons}); {hint}, or take --scale tiny"


# -- the record ----------------------------------------------------------------------------------------------------------------


def write_record(evidence: Evidence, path: Path) -> None:
    """Keep which cells a table rests on."""
    planned = [[*place, names] for place, names in evidence.planned.items()]
    document = {"target": evidence.target.name, "scale": vars(evidence.scale), "protocol": evidence.protocol, "planned": planned}
    write_json(path, document)


def read_record(path: Path, home: Path) -> Evidence:
    """What `write_record` kept; the cells lie in `home`."""
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
        places = {(row, data, backbone): names for row, data, backbone, names in document["planned"]}
        planned = {place: names if isinstance(names, str) else tuple(names) for place, names in places.items()}
        scale = Scale(**{**document["scale"], "datasets": tuple(document["scale"]["datasets"])})
        return Evidence(TARGETS[document["target"]], scale, home, document["protocol"], planned)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ModelFolderError(f"'{path}' is damaged or of another version of caprompt; make it again with reproduce") from error


def checked(given: dict[str, Any], targets: list[Target]) -> dict[str, Any]:
    """Settings that at least one method of the targets has; what the targets themselves say cannot be set."""
    methods = {row.method for target in targets for row in target.rows}
    known = {name for method in methods for name in get_method(method).options_class.model_fields}
    known = (known | RunConfig.model_fields.keys()) - set(FIXED)
    for name in given:
        if name not in known:
            hint = did_you_mean(name, known)
            raise OptionError(f"option '{name}' cannot be set here{hint}; there are: {', '.join(sorted(known))}")
    return given


def leaking(target: Target) -> Target:
    """The same target, if it makes sense under the leaking protocol."""
    if concavity in target.measures:
        raise InputError(f"{target.name} is about an image's own prompts; it cannot be had with --protocol released")
    return target


def merged(cells: list[Cell]) -> list[Cell]:
    """Each experiment once, with everything that any target measures on it; CAPrompt's own come as they are met."""
    by_name: dict[str, Cell] = {}
    for cell in cells:
        before = by_name.get(cell.name)
        measures = dict.fromkeys([*(before.measures if before else ()), *cell.measures])
        by_name[cell.name] = Cell(cell.config, tuple(measures))
    return list(by_name.values())
