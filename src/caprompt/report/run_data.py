"""The data of a report: finished runs of one protocol, read from run folders and checked."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from pydantic import BaseModel, ConfigDict, Field

from caprompt import checkpoint
from caprompt.errors import InputError, ModelFolderError
from caprompt.experiments.artifacts import COST, PREDICTIONS, FinalPredictions
from caprompt.experiments.audit import AUDIT, Audit
from caprompt.experiments.config import RunConfig
from caprompt.experiments.run_folder import RunResult, read_plan
from caprompt.protocols import require_same_protocol
from caprompt.utils import files

__all__ = ["RunRecord", "Tested", "find_run_folders", "load_runs", "read_run"]


class _Part(BaseModel):
    """A JSON object, of which only the listed keys are checked."""

    model_config = ConfigDict(strict=True, extra="allow", allow_inf_nan=False)


class _Images(_Part):
    images: int = Field(ge=0)
    sha256: str


class _Hashed(_Part):
    sha256: str


class _Described(_Part):
    """What a report shows of `run.json`, beyond what every reader of it needs."""

    backbone: _Hashed
    train: _Images
    test: _Images


class _Audit(_Part):
    """What a report shows of `audit.json` besides its arrangements."""

    clean: bool
    images: int = Field(ge=0)
    warnings: list[str] = []


class _Cost(_Part):
    """The numbers of `cost.json`; earlier versions may have written fewer."""

    trained_parameters: int = Field(0, ge=0)
    kept_bytes: int = Field(0, ge=0)
    kept_bytes_per_class: int = Field(0, ge=0)
    peak_memory_bytes: int | None = Field(None, ge=0)
    peak_memory_of: str = ""
    test_images: int = Field(0, ge=0)
    test_seconds: float = Field(0.0, ge=0)

    def check(self) -> None:
        """Raise ValueError where one of two numbers that belong together is missing."""
        for name, other in (("test_seconds", "test_images"), ("peak_memory_bytes", "peak_memory_of")):
            if getattr(self, name) and other not in self.model_fields_set:
                raise ValueError(f"it has '{name}', but no '{other}'")


class Tested(Protocol):
    """A model that was tested: that of a run, or one that was taught."""

    @property
    def tasks(self) -> Sequence[Sequence[str]]:
        """The classes of each task."""

    @property
    def predictions(self) -> FinalPredictions | None:
        """The prediction for every test image, if known."""


@dataclass(frozen=True)
class RunRecord:
    """One run. What was not saved with it is None or empty, and `notes` says so."""

    name: str
    plan: Mapping[str, Any]
    results: RunResult
    predictions: FinalPredictions | None
    cost: Mapping[str, Any]
    audit: Mapping[str, Any] | None
    notes: Sequence[str] = ()

    @property
    def tasks(self) -> Sequence[Sequence[str]]:
        """The classes of each task."""
        return self.results.tasks

    @property
    def config(self) -> RunConfig:
        """The configuration of the run."""
        return RunConfig(**self.plan["config"])

    @property
    def group_key(self) -> str:
        """A string that is equal for runs that differ only in their seed."""
        config = {name: value for name, value in self.plan["config"].items() if name != "seed"}
        return json.dumps([config, self.plan["options"], self.plan["backbone"]["sha256"]], sort_keys=True)


def load_runs(paths: Sequence[Path]) -> list[RunRecord]:
    """Read the runs in these folders under distinct names; raise if their protocols differ."""
    folders = find_run_folders(paths)
    runs = [read_run(folder, name) for folder, name in zip(folders, _make_distinct_names(folders), strict=True)]
    require_same_protocol(run.results.protocol for run in runs)
    return runs


def find_run_folders(paths: Sequence[Path]) -> list[Path]:
    """Return the run folders at `paths`.

    A folder that contains runs (the seeds of one experiment) is replaced by those runs.
    """
    folders: list[Path] = []
    for path in paths:
        if not path.is_dir():
            raise InputError(f"there is no folder '{path}'; give the folders of runs, such as those under runs/")
        children = sorted(child.parent for child in path.glob("*/run.json"))
        folders += children if children and not (path / "run.json").exists() else [path]
    if not folders:
        raise InputError("there is no run to report on; give the folder of one or more")
    resolved = [folder.resolve() for folder in folders]
    duplicates = [folder for folder, target in zip(folders, resolved, strict=True) if resolved.count(target) > 1]
    if duplicates:
        raise InputError(f"the run in '{duplicates[0]}' is given twice; give it once")
    return folders


def _make_distinct_names(folders: Sequence[Path]) -> list[str]:
    """Return the last parts of the paths, as many as are needed to make the names distinct.

    >>> _make_distinct_names([Path("runs/a/seed0"), Path("runs/b/seed0")])
    ['a/seed0', 'b/seed0']
    """
    all_parts = [folder.resolve().parts for folder in folders]
    names: list[str] = []
    for length in range(1, max(map(len, all_parts)) + 1):
        names = ["/".join(parts[-length:]) for parts in all_parts]
        if len(set(names)) == len(names):
            break
    return names


def read_run(folder: Path, name: str) -> RunRecord:
    """Read a finished run and everything that was saved with it."""
    try:
        plan, results = read_plan(folder), RunResult.load(folder)
        RunConfig(**plan["config"])
        _Described.model_validate(plan)
        results.check()
        if any(not 0 <= accuracy <= 100 for row in results.matrix for accuracy in row):
            raise ValueError("an accuracy is not a percentage")
        if results.rows and results.finished:
            results.summary()
    except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError) as error:
        if isinstance(error, ModelFolderError):
            raise
        raise ModelFolderError(f"the run in '{folder}' is damaged or of another version of caprompt; run it again") from error
    if not results.finished:
        num_tests = 1 if results.joint else len(results.tasks)
        raise ModelFolderError(
            f"the run in '{folder}' is not finished ({len(results.rows)} of {num_tests} tests done); finish it with resume=True"
        )
    notes: list[str] = []
    predictions = _read_predictions(folder, results, notes)
    return RunRecord(name, plan, results, predictions, _read_cost(folder), _read_audit(folder, notes), notes)


def _read_predictions(folder: Path, results: RunResult, notes: list[str]) -> FinalPredictions | None:
    """Read the predictions of the final test, if they were saved."""
    path = folder / PREDICTIONS
    if not path.is_file():
        notes.append("The predictions of the final test were not saved, so task weights and mistakes are not shown.")
        return None
    try:
        predictions = FinalPredictions.load(path)
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile) as error:
        raise ModelFolderError(f"'{path}' is damaged; remove it to make the report without mistakes and weights") from error
    if sorted(predictions.classes) != sorted(name for names in results.tasks for name in names):
        raise ModelFolderError(f"'{path}' belongs to another run: its classes are not those of '{folder}'")
    num_tasks = 1 if results.joint else len(results.tasks)
    if predictions.weights.shape[2] != num_tasks:
        raise ModelFolderError(f"'{path}' belongs to another run: it has {predictions.weights.shape[2]} tasks, not {num_tasks}")
    return predictions


def _read_cost(folder: Path) -> Mapping[str, Any]:
    """Read what the run cost, empty if that was not saved."""
    cost = _read_json(folder / COST)
    try:
        _Cost.model_validate(cost).check()
    except ValueError as error:
        raise ModelFolderError(f"'{folder / COST}' is damaged; remove it to make the report without it") from error
    return cost


def _read_audit(folder: Path, notes: list[str]) -> Mapping[str, Any] | None:
    """Read the audit of the run's model, unless the model has been trained since."""
    if not (folder / AUDIT).is_file():
        return None
    audit = _read_json(folder / AUDIT)
    files_of_model = _read_json(folder / "model" / checkpoint.CONFIG).get("files")
    state = files_of_model.get(checkpoint.STATE) if isinstance(files_of_model, dict) else None
    if audit.get("state") != state:
        notes.append("The audit in this run's folder is of another state of the model and is not shown; audit it again.")
        return None
    try:
        _Audit.model_validate(audit)
        Audit.from_dict(audit).tabulate()
    except (LookupError, TypeError, ValueError) as error:
        raise ModelFolderError(f"'{folder / AUDIT}' is damaged; remove it to make the report without it") from error
    return audit


def _read_json(path: Path) -> dict[str, Any]:
    """Read a JSON object of a run folder, empty if there is no such file."""
    try:
        return files.read_json(path)
    except (InputError, OSError, RecursionError) as error:
        raise ModelFolderError(f"'{path}' is damaged; remove it to make the report without it") from error
