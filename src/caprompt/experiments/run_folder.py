"""Run folders: `run.json` and `results.json` are read, written and compared here, and folders are named."""

from __future__ import annotations

import json
import platform
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import count
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from caprompt import __version__, checkpoint, metrics, protocols
from caprompt.checkpoint.model import IN_PROGRESS, has_stopped_call
from caprompt.errors import InputError, ModelFolderError
from caprompt.experiments.config import RunConfig
from caprompt.utils import files

__all__ = [
    "FORMAT",
    "PLANNED",
    "RunResult",
    "TaskResult",
    "check_same_plan",
    "choose_run_folder",
    "describe_environment",
    "format_run_title",
    "is_empty_folder",
    "read_finished_epochs",
    "read_plan",
]

FORMAT = 1  # of a run folder
PLANNED = {"config", "options", "backbone", "tasks", "train", "test", "protocol", "environment"}  # keys that every run.json has
REMEDY = "remove the folder and run it again, or read it with the version that wrote it"

RUNS = Path("runs")

Count = Annotated[int, Field(ge=0, le=10**12)]


class _Document(BaseModel):
    """A JSON object, of which only the listed keys are checked."""

    model_config = ConfigDict(strict=True, extra="allow", allow_inf_nan=False)


class _Plan(_Document):
    """The types of `run.json`; what is in its parts is checked by those who use them."""

    config: dict[str, Any]
    options: dict[str, Any]
    backbone: dict[str, Any]
    tasks: list[list[str]] = Field(min_length=1)
    train: dict[str, Any]
    test: dict[str, Any]
    protocol: str
    environment: dict[str, Any]
    warnings: list[str] = []
    skipped: list[str] = []


class _Row(_Document):
    model_config = ConfigDict(extra="forbid")

    accuracies: list[float]
    images: list[Count]
    task_identification: float
    mean_passes: float = Field(ge=0)
    seconds: float = Field(ge=0)


_ROWS = TypeAdapter(list[_Row])


def read_finished_epochs(model_folder: Path) -> list[Mapping[str, Any]]:
    """Return the finished epochs of the model in a folder, including those of a stopped call."""
    for folder in (model_folder / IN_PROGRESS, model_folder):
        if checkpoint.exists(folder) and (folder == model_folder or has_stopped_call(model_folder)):
            return list(checkpoint.read(folder).metrics)
    return []


@dataclass(frozen=True)
class TaskResult:
    """Result of the test after one task, in percent, and the training time of that task."""

    accuracies: tuple[float, ...]  # on the classes of each task so far: a row of the accuracy matrix
    images: tuple[int, ...]  # test images behind each
    task_identification: float
    mean_passes: float
    seconds: float  # spent in training epochs; epochs repeated after a stop count once


@dataclass(frozen=True)
class RunResult:
    """The accuracy matrix of a run, row by row, and the metrics that follow from it."""

    folder: Path
    tasks: Sequence[Sequence[str]]
    rows: Sequence[TaskResult]
    protocol: str = protocols.HONEST
    joint: bool = False  # all tasks were learned at once: there is one row, with every task in it

    @property
    def matrix(self) -> list[tuple[float, ...]]:
        """`matrix[i][j]`: accuracy on task j after learning task i."""
        return [row.accuracies for row in self.rows]

    @property
    def finished(self) -> bool:
        """Whether all tasks have been learned and tested."""
        return len(self.rows) == (1 if self.joint else len(self.tasks))

    def summary(self) -> dict[str, float]:
        """Return every metric of `metrics.METRICS`, in percent."""
        last = self.rows[-1]
        return metrics.summarize(metrics.Scores(self.matrix, last.images, last.task_identification))

    def save(self) -> None:
        """Write `results.json`, atomically."""
        document = {
            "protocol": self.protocol,
            "tasks": self.tasks,
            "finished": self.finished,
            "rows": [asdict(row) for row in self.rows],
        }
        files.write_json(self.folder / "results.json", {**document, "summary": self.summary()})

    @classmethod
    def load(cls, folder: Path) -> RunResult:
        """Read the results of a run so far."""
        plan = read_plan(folder)
        path = folder / "results.json"
        try:
            rows = json.loads(path.read_text(encoding="utf-8"))["rows"] if path.is_file() else []
            _ROWS.validate_python(rows)
            results = [
                TaskResult(**{**row, "accuracies": tuple(row["accuracies"]), "images": tuple(row["images"])}) for row in rows
            ]
        except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
            raise ModelFolderError(f"'{path}' is half-written or of another version of caprompt; {REMEDY}") from error
        return cls(folder, plan["tasks"], results, plan["protocol"], bool(plan["config"].get("joint", False)))

    def check(self) -> None:
        """Raise ValueError if the rows are not those of an accuracy matrix of these tasks."""
        num_tasks = len(self.tasks)
        lengths = [num_tasks] if self.joint else range(1, num_tasks + 1)
        if len(self.rows) > len(lengths):
            raise ValueError(f"it has {len(self.rows)} rows, but {num_tasks} tasks")
        for row, length in zip(self.rows, lengths, strict=False):
            if len(row.accuracies) != length or len(row.images) != length or not sum(row.images):
                raise ValueError(
                    f"a row of {length} tasks has {len(row.accuracies)} accuracies of {len(row.images)} sets of images"
                )


def is_empty_folder(folder: Path) -> bool:
    """Return whether a folder is empty, apart from what a killed first write may have left."""
    return folder.is_dir() and all(path.name == ".run.json.next" for path in folder.iterdir())


def describe_environment(device: torch.device) -> dict[str, Any]:
    """Return versions and machine."""
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else platform.processor() or platform.machine()
    versions = {
        "caprompt": __version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": np.__version__,
    }
    return {**versions, "device": f"{device.type}: {name}", "threads": torch.get_num_threads()}


def read_plan(folder: Path) -> dict[str, Any]:
    """Read the plan of a run folder."""
    try:
        plan: dict[str, Any] = json.loads((folder / "run.json").read_text(encoding="utf-8"))
    except OSError as error:
        raise ModelFolderError(f"'{folder}' does not hold a run (run.json cannot be read)") from error
    except (ValueError, RecursionError) as error:
        raise ModelFolderError(f"'{folder}' does not hold a run: run.json is half-written; {REMEDY}") from error
    version = plan.get("format", 1) if isinstance(plan, dict) else None  # the first runs had no format number
    if not isinstance(version, int):
        raise ModelFolderError(f"'{folder}' does not hold a run: its run.json is not a plan; {REMEDY}")
    if version > FORMAT:
        raise ModelFolderError(
            f"the run in '{folder}' was written by a newer caprompt (format {version}, this one reads up to {FORMAT}); upgrade it"
        )
    if not plan.keys() >= PLANNED:
        raise ModelFolderError(f"the run in '{folder}' was written by another version of caprompt; {REMEDY}")
    try:
        _Plan.model_validate(plan)
    except ValidationError as error:
        place = ".".join(map(str, error.errors()[0]["loc"]))[:100]
        raise ModelFolderError(f"run.json of '{folder}' is damaged ({place!r} has a wrong type or value); {REMEDY}") from error
    return plan


def check_same_plan(folder: Path, plan: Mapping[str, Any]) -> None:
    """Refuse to resume a run with other settings; versions and machine may differ."""
    before = read_plan(folder)
    for part in ("config", "options", "backbone", "tasks", "train", "test"):
        if json.loads(json.dumps(plan[part])) != before[part]:
            raise InputError(
                f"the run in '{folder}' was started with other settings ({part} differs); resume it with the same ones"
            )


def choose_run_folder(config: RunConfig, requested: Path | None, resume: bool, several: bool) -> Path:
    """Return the folder of a run: the requested one, or one named after the run, numbered if that exists.

    With `resume`, the unfinished run of the same configuration; among several seeds also a finished one (nothing is left to do)
    or, for a seed that was not started, a new one.
    """
    if requested is not None:
        if resume and not any(requested.glob("seed*/run.json" if several else "run.json")):
            raise InputError(f"there is no run to resume in '{requested}'; start it without resume=True")
        return requested / f"seed{config.seed}" if several else requested
    earlier: list[Path] = []
    for candidate in _iter_candidate_folders(config):
        if not candidate.exists():
            break
        if is_same_run(candidate, config):
            earlier.append(candidate)
    if not resume:
        return candidate
    unfinished = [folder for folder in earlier if not RunResult.load(folder).finished]
    if unfinished:
        return unfinished[-1]
    if not several:
        raise InputError(f"there is no unfinished run like this under '{RUNS}'; start it without resume=True")
    return earlier[-1] if earlier else candidate


def _iter_candidate_folders(config: RunConfig) -> Iterator[Path]:
    """Yield the folder names for runs of this configuration, one after another."""
    backbone = Path(config.backbone).name.removesuffix(".safetensors")
    name = f"{Path(config.dataset).stem}-{format_run_title(config)}-{backbone}-seed{config.seed}"
    yield RUNS / name
    for number in count(2):
        yield RUNS / f"{name}-{number}"


def format_run_title(config: RunConfig) -> str:
    """Return the name of a run: its method, and marks for a leaking protocol and for joint training."""
    marks = {"released": config.options.get("protocol") == "released", "joint": config.joint}
    return "-".join([config.method, *(mark for mark, holds in marks.items() if holds)])


def is_same_run(folder: Path, config: RunConfig) -> bool:
    """Return whether the run in this folder was started with this configuration."""
    try:
        before = json.loads((folder / "run.json").read_text(encoding="utf-8"))["config"]
    except (OSError, ValueError, LookupError, TypeError, RecursionError):
        return False
    return bool(before == json.loads(config.model_dump_json()))
