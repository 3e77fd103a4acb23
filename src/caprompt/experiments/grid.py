"""Grids of experiments: many cells, each a resumable run in a folder of its own.

A cell is a configuration and what to measure on its trained model. Its folder is named after a hash of the full, resolved
configuration (every option of the method, the content of the backbone's file), so that tables share the cells they both need:

    cells/
      digits-caprompt-seed0-1f2e3d4c5b6a/               the run (`execution`), and a JSON file for each measure
      digits-caprompt-seed0-1f2e3d4c5b6a.failed.json    why it failed when it was last tried

A finished cell is never run again. A failure is recorded and the grid goes on; the next call tries that cell again. A cell that was
stopped or killed is resumed. Cells run in this process, in several of this machine, or on a cluster (`caprompt.distributed`); one
call at a time directs them, which it shows to others by a lease in the folder `.leases`.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timezone
from functools import cached_property, lru_cache, partial
from pathlib import Path
from typing import Any, Protocol

import torch

from caprompt.callbacks.events import Callback, Event, LearnStarted, ignore_event
from caprompt.classifier import ContinualClassifier
from caprompt.data import Samples
from caprompt.distributed.jobs import Executor, Job
from caprompt.distributed.leases import hold_driver_lease, hold_lease
from caprompt.distributed.local_grid import ProcessExecutor
from caprompt.errors import ModelFolderError, OptionError, first_line
from caprompt.experiments.config import RunConfig
from caprompt.experiments.execution import load_test_images, run_experiment
from caprompt.experiments.provenance import PROVENANCE, describe_provenance
from caprompt.experiments.run_folder import RunResult
from caprompt.utils.files import compute_sha256, write_json

__all__ = [
    "LEASES",
    "Cell",
    "GridProgress",
    "Measure",
    "NullGridProgress",
    "is_done",
    "read_failure",
    "read_measure",
    "run_cell",
    "run_grid",
]

LEASES = ".leases"  # in the folder of the cells, while they are being run
VISIBLE_AFTER = 60.0  # seconds for which a network file system may show an old state


class Measure(Protocol):
    """A function of a trained model and its test images; its result is saved as JSON under the function's name."""

    __name__: str

    def __call__(self, model: ContinualClassifier, images: Samples, /) -> Mapping[str, Any]: ...


@lru_cache
def _identify_backbone(backbone: str) -> str:
    """Return the hash of a backbone's file, wherever it is, or the name of a backbone."""
    return compute_sha256(Path(backbone)) if Path(backbone).is_file() else backbone


@dataclass(frozen=True)
class Cell:
    """One experiment of a grid; its configuration must come from `resolve_config`."""

    config: RunConfig
    measures: tuple[Measure, ...] = ()

    @cached_property
    def name(self) -> str:
        """The name of its folder: readable, with a hash of everything that identifies the run."""
        identity = {**self.config.model_dump(mode="json"), "backbone": _identify_backbone(self.config.backbone)}
        key = hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()[:12]
        return f"{Path(self.config.dataset).stem}-{self.config.method}-seed{self.config.seed}-{key}"


class GridProgress(Protocol):
    """Callbacks for the progress of a grid."""

    def on_start(self, cell: Cell) -> None:
        """Called when a cell starts."""

    def on_event(self, cell: Cell, event: Event) -> None:
        """Called with the events of a cell that runs in this process."""

    def on_end(self, cell: Cell, reason: str | None) -> None:
        """Called when a cell has finished, or failed for a reason."""


class NullGridProgress:
    """No-op progress callbacks."""

    def on_start(self, cell: Cell) -> None:
        """Do nothing."""

    def on_event(self, cell: Cell, event: Event) -> None:
        """Do nothing."""

    def on_end(self, cell: Cell, reason: str | None) -> None:
        """Do nothing."""


def is_done(folder: Path, measures: Sequence[Measure]) -> bool:
    """Return whether a cell has finished and every measure was saved."""
    return has_run(folder) and all(_measure_path(folder, measure).is_file() for measure in measures)


def has_run(folder: Path) -> bool:
    """Return whether a folder holds a finished run."""
    return (folder / "run.json").is_file() and RunResult.load(folder).finished


def read_measure(folder: Path, measure: Measure) -> dict[str, Any]:
    """Read the result of a measure from a finished cell."""
    path = _measure_path(folder, measure)
    try:
        result: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ModelFolderError(f"'{path}' cannot be read; remove it and run the same command again") from error
    return result


def read_failure(folder: Path) -> str | None:
    """Return why a cell failed when it was last tried, if it did."""
    with suppress(OSError, ValueError, KeyError):
        return str(json.loads(_failure_path(folder).read_text(encoding="utf-8"))["reason"])
    return None


def run_grid(
    cells: Sequence[Cell],
    cells_dir: Path,
    *,
    jobs: int = 1,
    device: str = "auto",
    progress: GridProgress | None = None,
    executor: Executor | None = None,
) -> None:
    """Run every cell that is not done: one after another, with `jobs` above 1 that many processes at once, or by an executor."""
    if jobs < 1:
        raise OptionError(f"option 'jobs' must be at least 1, not {jobs}")
    progress = progress or NullGridProgress()
    pending = [cell for cell in cells if not is_done(cells_dir / cell.name, cell.measures)]
    if not pending:
        return
    if executor is None and jobs > 1:
        executor = ProcessExecutor(jobs, max(1, torch.get_num_threads() // jobs))
    leases = cells_dir.absolute() / LEASES
    with hold_driver_lease(leases, cells_dir) as lease:
        if executor is None:
            for cell in pending:
                progress.on_start(cell)
                with hold_lease(leases / cell.name, cells_dir / cell.name):  # a job of Slurm may outlive the call that began it
                    if not is_done(cells_dir / cell.name, cell.measures):
                        run_cell(cell, cells_dir, device, partial(progress.on_event, cell))
                progress.on_end(cell, read_failure(cells_dir / cell.name))
            return
        calls = [_make_job(cell, cells_dir.absolute(), device, executor.threads) for cell in pending]
        executor.run(calls, leases, lease.token, _CellProgress(pending, cells_dir, progress))


def _make_job(cell: Cell, cells_dir: Path, device: str, threads: int) -> Job:
    run = partial(_run_in_worker, cell, cells_dir, device, threads)
    return Job(cell.name, run, partial(is_done, cells_dir / cell.name, cell.measures))


def _run_in_worker(cell: Cell, cells_dir: Path, device: str, threads: int) -> None:
    torch.set_num_threads(threads)
    run_cell(cell, cells_dir, device)


class _CellProgress:
    """Progress of jobs, reported as progress of cells; what a job leaves is read from the disk."""

    def __init__(self, cells: Sequence[Cell], cells_dir: Path, progress: GridProgress) -> None:
        self.cells, self.cells_dir, self.progress = {cell.name: cell for cell in cells}, cells_dir, progress

    def on_start(self, name: str) -> None:
        self.progress.on_start(self.cells[name])

    def on_end(self, name: str, reason: str | None) -> None:
        cell = self.cells[name]
        if reason is None and not self._is_visible(cell):
            reason = f"it ran, but left nothing in '{self.cells_dir}' that can be seen from here"
        if reason is not None:
            _write_failure(cell, self.cells_dir, reason)
        self.progress.on_end(cell, read_failure(self.cells_dir / name))

    def _is_visible(self, cell: Cell) -> bool:
        """Wait until what another machine wrote can be seen here: a network file system may take a while to look again."""
        folder, deadline = self.cells_dir / cell.name, time.monotonic() + VISIBLE_AFTER
        while not is_done(folder, cell.measures) and read_failure(folder) is None:
            if time.monotonic() > deadline:
                return False
            time.sleep(0.5)
        return True


def run_cell(cell: Cell, cells_dir: Path, device: str = "auto", callback: Callback = ignore_event) -> None:
    """Run or resume one cell to its end; a failure is recorded in a file."""
    folder = cells_dir / cell.name

    def record(event: Event) -> None:
        if isinstance(event, LearnStarted):  # and not at the end, where a kill might come before it
            write_json(folder / PROVENANCE, describe_provenance())
        callback(event)

    try:
        if not has_run(folder):
            run_experiment(cell.config, folder, resume=True, device=device, callbacks=record)
        missing = [measure for measure in cell.measures if not _measure_path(folder, measure).is_file()]
        if missing:
            model, images = ContinualClassifier.load(folder / "model", device=device), load_test_images(cell.config)
            for measure in missing:
                write_json(_measure_path(folder, measure), measure(model, images))
    except Exception as error:  # whatever it is, the other cells can still run
        _write_failure(cell, cells_dir, f"{type(error).__name__}: {first_line(error)}")
    else:
        _failure_path(folder).unlink(missing_ok=True)


def _measure_path(folder: Path, measure: Measure) -> Path:
    return folder / f"{measure.__name__}.json"


def _failure_path(folder: Path) -> Path:
    return folder.with_name(f"{folder.name}.failed.json")


def _write_failure(cell: Cell, cells_dir: Path, reason: str) -> None:
    when = datetime.now(timezone.utc).isoformat(timespec="seconds")
    document = {"reason": reason, "when": when, "config": cell.config.model_dump(mode="json")}
    write_json(_failure_path(cells_dir / cell.name), document)
