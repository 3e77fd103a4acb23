"""Experiment trackers: wandb, trackio and MLflow, and what they share with TensorBoard.

A tracker gets the configuration of a run, the losses of every epoch, the accuracy matrix row by row and the final metrics.
Nothing leaves the machine unless the user has configured the library to: wandb runs offline unless `WANDB_MODE` says otherwise,
trackio and MLflow write local files unless their own environment variables name a server, and usage statistics are off.

`tracking.json` in the run folder holds the name under which each library knows the run, so that a resumed run goes on there.
"""

from __future__ import annotations

import json
import os
import secrets
import sys
from collections.abc import Callable, Mapping
from contextlib import redirect_stdout
from importlib import import_module
from pathlib import Path
from types import ModuleType, TracebackType
from typing import Any

from caprompt.callbacks.events import EpochEnded, Event, LearnStarted, TaskEvaluated
from caprompt.errors import CapromptError, OptionError, UnknownNameError, first_line
from caprompt.utils import files

__all__ = ["TRACKERS", "LibraryTracker", "Tracker", "make_tracker"]

TRACKERS = ("wandb", "trackio", "tensorboard", "mlflow")
PROJECT = "caprompt"
RECORD = "tracking.json"
#: Set before a library is imported, unless the user has set them.
NO_STATISTICS = {"WANDB_ERROR_REPORTING": "false", "MLFLOW_DISABLE_TELEMETRY": "true", "HF_HUB_DISABLE_TELEMETRY": "1"}

ReadConfig = Callable[[], Mapping[str, Any]]


class Tracker:
    """A callback that sends scalars to a tracking library, and a context that ends the tracked run."""

    def __init__(self, read_config: ReadConfig = dict) -> None:
        self.read_config = read_config  # called when training starts: only then a run has its complete configuration
        self.task = 0
        self.started = False

    def __call__(self, event: Event) -> None:
        """Log the scalars of an epoch or an evaluation."""
        if isinstance(event, LearnStarted):
            self.task = event.task
        elif isinstance(event, EpochEnded):
            self._log(event.as_scalars(self.task), event.epoch + 1)
        elif isinstance(event, TaskEvaluated):
            self._log(event.as_scalars(), len(event.matrix))

    def __enter__(self) -> Tracker:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self.started:
            self.stop(failed=kind is not None)

    def log_summary(self, summary: Mapping[str, float]) -> None:
        """Log the final metrics of a run; not those of a run that was finished before and has trained nothing now."""
        if self.started:
            self._log({f"final/{name}": value for name, value in summary.items()}, self.task)

    def _log(self, values: Mapping[str, float], step: int) -> None:
        if not self.started:
            self.start(self.read_config())
            self.started = True
        self.log(values, step)

    def start(self, config: Mapping[str, Any]) -> None:
        """Start the tracked run."""
        raise NotImplementedError

    def log(self, values: Mapping[str, float], step: int) -> None:
        """Log values of curves at a step, which is an epoch of a task, or a number of tasks."""
        raise NotImplementedError

    def stop(self, failed: bool) -> None:
        """End the tracked run."""
        raise NotImplementedError


class LibraryTracker(Tracker):
    """A tracker that logs to a library with `init`, `log` and `finish`: wandb or trackio."""

    def __init__(self, library: str, folder: Path, read_config: ReadConfig = dict) -> None:
        super().__init__(read_config)
        self.library, self.folder = library, folder
        self.module = _import_library(library)

    def start(self, config: Mapping[str, Any]) -> None:
        """Start the tracked run, or go on with that of a run that is resumed."""
        known = _read_record(self.folder)
        key = known.get(self.library) or secrets.token_hex(4)
        name = f"{_name_run(self.folder)}-{key}"
        own = self._make_wandb_arguments(key) if self.library == "wandb" else {"embed": False}
        try:
            with redirect_stdout(sys.stderr):  # stdout is for results
                self.module.init(project=PROJECT, name=name, config=dict(config), resume="allow", **own)
        except Exception as error:  # whatever a library raises, such as for a server that is not reached
            raise _make_start_error(self.library, error) from error
        files.write_json(self.folder / RECORD, {**known, self.library: key})

    def _make_wandb_arguments(self, key: str) -> dict[str, Any]:
        settings = self.module.Settings(silent=os.environ.get("WANDB_SILENT", "true") == "true", console="off")
        return {"id": key, "dir": str(self.folder), "mode": os.environ.get("WANDB_MODE", "offline"), "settings": settings}

    def log(self, values: Mapping[str, float], step: int) -> None:
        """Log values; these libraries count the steps of all curves together, and do so themselves."""
        self.module.log({**values, "task": self.task})

    def stop(self, failed: bool) -> None:
        """End the tracked run and write what is left to write."""
        with redirect_stdout(sys.stderr):
            if self.library == "wandb":
                self.module.finish(exit_code=int(failed))
            else:
                self.module.finish()


class MLflowTracker(Tracker):
    """A tracker that logs to MLflow."""

    def __init__(self, folder: Path, read_config: ReadConfig = dict) -> None:
        super().__init__(read_config)
        self.folder = folder
        self.module = _import_library("mlflow")

    def start(self, config: Mapping[str, Any]) -> None:
        """Start the tracked run, or go on with that of a run that is resumed."""
        known = _read_record(self.folder)
        try:
            self.module.set_experiment(PROJECT)
            run = self.module.start_run(run_id=known.get("mlflow"), run_name=_name_run(self.folder))
            self.module.log_params({name: json.dumps(value)[:500] for name, value in config.items()})
        except Exception as error:
            raise _make_start_error("mlflow", error) from error
        files.write_json(self.folder / RECORD, {**known, "mlflow": run.info.run_id})

    def log(self, values: Mapping[str, float], step: int) -> None:
        """Log values of curves, each with steps of its own."""
        self.module.log_metrics(dict(values), step=step)

    def stop(self, failed: bool) -> None:
        """End the tracked run."""
        self.module.end_run("FAILED" if failed else "FINISHED")


def make_tracker(name: str, folder: Path, read_config: ReadConfig = dict) -> Tracker:
    """Return a tracker of the run in a folder; raise `OptionError` if its library is not installed.

    Nothing is written before the end of the first epoch.
    """
    if name not in TRACKERS:
        raise UnknownNameError("tracker", name, TRACKERS)
    if name == "tensorboard":
        from caprompt.callbacks.tensorboard import TensorBoardWriter

        return TensorBoardWriter(folder / "tensorboard", read_config)
    return MLflowTracker(folder, read_config) if name == "mlflow" else LibraryTracker(name, folder, read_config)


def _import_library(name: str) -> ModuleType:
    for variable, value in NO_STATISTICS.items():
        os.environ.setdefault(variable, value)
    try:
        module = import_module(name)
        # A folder `wandb`, in which wandb writes, is imported as an empty package where the library is not installed.
        if module.__file__ is None:
            raise ImportError
    except ImportError:
        remedy = "mlflow" if name == "mlflow" else "'caprompt[track]'"
        raise OptionError(f"tracking with {name} needs the package {name}: pip install {remedy}") from None
    return module


def _make_start_error(library: str, error: Exception) -> CapromptError:
    return CapromptError(f"{library} could not start ({first_line(error)}); check its configuration, then go on with resume=True")


def _read_record(folder: Path) -> dict[str, str]:
    """Return the name of this run in each library that has tracked it."""
    return {library: str(key) for library, key in files.read_json(folder / RECORD).items()}


def _name_run(folder: Path) -> str:
    """Return the name of a run: that of its folder, and for one of several seeds also that of the folder above.

    >>> _name_run(Path("/runs/beetles")), _name_run(Path("/runs/beetles/seed3"))
    ('beetles', 'beetles-seed3')
    """
    folder = folder.resolve()
    is_seed = folder.name.startswith("seed") and folder.name.removeprefix("seed").isdigit()
    return f"{folder.parent.name}-{folder.name}" if is_seed else folder.name
