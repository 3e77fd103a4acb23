"""What a report is made of, read from run folders and checked: finished runs of one protocol, and all that lies beside them."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from caprompt import checkpoint
from caprompt.errors import InputError, ModelFolderError
from caprompt.experiments.artifacts import COST, PREDICTIONS, TestPredictions
from caprompt.experiments.audit import AUDIT
from caprompt.experiments.config import RunConfig
from caprompt.experiments.run_folder import RunResult, read_plan
from caprompt.protocols import single

__all__ = ["RunRecord", "gather", "read_run", "run_folders"]


@dataclass(frozen=True)
class RunRecord:
    """One run. What it did not keep is None or empty, and `notes` says so."""

    name: str
    plan: Mapping[str, Any]
    results: RunResult
    final: TestPredictions | None
    cost: Mapping[str, Any]
    audit: Mapping[str, Any] | None
    notes: Sequence[str] = ()

    @property
    def config(self) -> RunConfig:
        """The configuration as it was given."""
        return RunConfig(**self.plan["config"])

    @property
    def kind(self) -> str:
        """What runs that differ only in their seed have in common."""
        config = {name: value for name, value in self.plan["config"].items() if name != "seed"}
        return json.dumps([config, self.plan["options"], self.plan["backbone"]["sha256"]], sort_keys=True)


def gather(folders: Sequence[Path]) -> list[RunRecord]:
    """The runs in these folders, named so that they can be told apart; runs of different protocols are refused."""
    found = run_folders(folders)
    runs = [read_run(folder, name) for folder, name in zip(found, distinct_names(found), strict=True)]
    single(run.results.protocol for run in runs)
    return runs


def run_folders(given: Sequence[Path]) -> list[Path]:
    """The folders themselves, or in place of one without a run the runs right below it (the seeds of one experiment)."""
    folders: list[Path] = []
    for place in given:
        if not place.is_dir():
            raise InputError(f"there is no folder '{place}'; give the folders of runs, such as those under runs/")
        below = sorted(path.parent for path in place.glob("*/run.json"))
        folders += below if below and not (place / "run.json").exists() else [place]
    if not folders:
        raise InputError("there is no run to report on; give the folder of one or more")
    resolved = [folder.resolve() for folder in folders]
    twice = [folder for folder, own in zip(folders, resolved, strict=True) if resolved.count(own) > 1]
    if twice:
        raise InputError(f"the run in '{twice[0]}' is given twice; name it once")
    return folders


def distinct_names(folders: Sequence[Path]) -> list[str]:
    """The last parts of the paths, as many as are needed to tell them apart.

    >>> distinct_names([Path("runs/a/seed0"), Path("runs/b/seed0")])
    ['a/seed0', 'b/seed0']
    """
    parts = [folder.resolve().parts for folder in folders]
    names: list[str] = []
    for length in range(1, max(map(len, parts)) + 1):
        names = ["/".join(own[-length:]) for own in parts]
        if len(set(names)) == len(names):
            break
    return names


def read_run(folder: Path, name: str) -> RunRecord:
    """A finished run and all that it kept."""
    try:
        plan, results = read_plan(folder), RunResult.load(folder)
        RunConfig(**plan["config"])
        for part in ("options", "backbone", "train", "test", "environment"):
            dict(plan[part])
        if results.rows and results.finished:
            results.summary()
    except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
        if isinstance(error, ModelFolderError):
            raise
        raise ModelFolderError(f"the run in '{folder}' is damaged or of another version of caprompt; run it again") from error
    if not results.finished:
        portions = 1 if results.joint else len(results.tasks)
        raise ModelFolderError(
            f"the run in '{folder}' is not finished ({len(results.rows)} of {portions} tests done); "
            "finish it with caprompt run --resume"
        )
    notes: list[str] = []
    final = read_final(folder, results, notes)
    cost = read_json(folder / COST) or {}
    return RunRecord(name, plan, results, final, cost, read_audit(folder, notes), notes)


def read_final(folder: Path, results: RunResult, notes: list[str]) -> TestPredictions | None:
    """The answers of the final test, if they were kept."""
    path = folder / PREDICTIONS
    if not path.is_file():
        notes.append("This run did not keep the answers of its final test, so task weights and mistakes are not shown.")
        return None
    try:
        final = TestPredictions.load(path)
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile) as error:
        raise ModelFolderError(f"'{path}' is damaged; remove it, and the report is made without mistakes and weights") from error
    if sorted(final.classes) != sorted(name for names in results.tasks for name in names):
        raise ModelFolderError(f"'{path}' belongs to another run: its classes are not those of '{folder}'")
    return final


def read_audit(folder: Path, notes: list[str]) -> Mapping[str, Any] | None:
    """The audit of the run's model, unless the model has been trained on since."""
    found = read_json(folder / AUDIT)
    if found is None:
        return None
    model = read_json(folder / "model" / checkpoint.CONFIG) or {}
    if found.get("state") != model.get("files", {}).get(checkpoint.STATE):
        notes.append("The audit in this run's folder is of another state of the model and is not shown; audit it again.")
        return None
    return found


def read_json(path: Path) -> dict[str, Any] | None:
    """A JSON object, or None if there is no such file."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(found, dict):
            raise ValueError("no object")
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise ModelFolderError(f"'{path}' is damaged; remove it to make the report without it") from error
    return found
