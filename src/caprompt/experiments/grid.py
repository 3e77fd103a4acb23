"""Grids of experiments: many cells, each one resumable run in a folder of its own.

A cell is a configuration and what to measure on its trained model. Its folder is named after a hash of the full, resolved
configuration (every option of the method, the backbone's content), so two tables that need the same cell share it:

    home/
      digits-caprompt-seed0-1f2e3d4c5b6a/               the run (`experiment.py`), and a JSON file for each measure
      digits-caprompt-seed0-1f2e3d4c5b6a.failed.json    why it could not be run when it was last tried

A finished cell is never run again. A cell that fails is written down and passed over; the next call tries it again. Whatever was
stopped or killed goes on where it was.
"""

from __future__ import annotations

import hashlib
import json
import os
import signal
import threading
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime, timezone
from functools import cached_property, lru_cache, partial
from multiprocessing import connection, get_context, parent_process
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, Protocol

import torch

from caprompt.callbacks.events import Callback, Event, ignore_event
from caprompt.classifier import ContinualClassifier
from caprompt.data import Samples
from caprompt.errors import ModelFolderError, OptionError
from caprompt.experiments.config import RunConfig
from caprompt.experiments.execution import load_test_images, run_experiment
from caprompt.experiments.run_folder import RunResult
from caprompt.utils.files import sha256_of, write_json

__all__ = ["Cell", "GridProgress", "Measure", "NullGridProgress", "is_done", "read_failure", "read_measure", "run_cell", "run_grid"]


class Measure(Protocol):
    """A function of a trained model and its test images; what it returns is kept as JSON under the function's name."""

    __name__: str

    def __call__(self, model: ContinualClassifier, images: Samples, /) -> Mapping[str, Any]: ...


@lru_cache
def _content_of(backbone: str) -> str:
    """A backbone's file is what it holds, wherever it lies; a name is a name."""
    return sha256_of(Path(backbone)) if Path(backbone).is_file() else backbone


@dataclass(frozen=True)
class Cell:
    """One experiment of a grid; make it of a `resolved` configuration."""

    config: RunConfig
    measures: tuple[Measure, ...] = ()

    @cached_property
    def name(self) -> str:
        """The name of its folder: for people, and a hash of everything that says what the run is."""
        whole = {**self.config.model_dump(mode="json"), "backbone": _content_of(self.config.backbone)}
        key = hashlib.sha256(json.dumps(whole, sort_keys=True).encode()).hexdigest()[:12]
        return f"{Path(self.config.dataset).stem}-{self.config.method}-seed{self.config.seed}-{key}"


class GridProgress(Protocol):
    """Whoever is shown how a grid goes on."""

    def began(self, cell: Cell) -> None:
        """A cell is being run."""

    def heard(self, cell: Cell, event: Event) -> None:
        """A cell that is run in this process says how it goes on."""

    def ended(self, cell: Cell, reason: str | None) -> None:
        """A cell is finished, or has failed for a reason."""


class NullGridProgress:
    """The watcher that looks away."""

    def began(self, cell: Cell) -> None:
        """Nothing is shown."""

    def heard(self, cell: Cell, event: Event) -> None:
        """Nothing is shown."""

    def ended(self, cell: Cell, reason: str | None) -> None:
        """Nothing is shown."""


def is_done(folder: Path, measures: Sequence[Measure]) -> bool:
    """Is everything there that a cell with these measures should give?"""
    return has_run(folder) and all(_place(folder, measure).is_file() for measure in measures)


def has_run(folder: Path) -> bool:
    """Is there a finished run?"""
    return (folder / "run.json").is_file() and RunResult.load(folder).finished


def read_measure(folder: Path, measure: Measure) -> dict[str, Any]:
    """What a measure found in a finished cell."""
    path = _place(folder, measure)
    try:
        found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ModelFolderError(f"'{path}' cannot be read; remove it, and the same command measures again") from error
    return found


def read_failure(folder: Path) -> str | None:
    """Why a cell could not be run, if it was tried and failed."""
    with suppress(OSError, ValueError, KeyError):
        return str(json.loads(_failure_place(folder).read_text(encoding="utf-8"))["reason"])
    return None


def run_grid(cells: Sequence[Cell], home: Path, *, jobs: int = 1, device: str = "auto", watch: GridProgress | None = None) -> None:
    """Run every cell that is not done: one after another, or with `jobs` above 1 as many at once, a process each."""
    if jobs < 1:
        raise OptionError(f"option 'jobs' must be at least 1, not {jobs}")
    watch = watch or NullGridProgress()
    left = [cell for cell in cells if not is_done(home / cell.name, cell.measures)]
    if jobs > 1:
        _side_by_side(left, home, device, jobs, watch)
        return
    for cell in left:
        watch.began(cell)
        run_cell(cell, home, device, partial(watch.heard, cell))
        watch.ended(cell, read_failure(home / cell.name))


def run_cell(cell: Cell, home: Path, device: str = "auto", listen: Callback = ignore_event) -> None:
    """Run one cell to its end, or go on with it. What goes wrong is written down."""
    folder = home / cell.name
    try:
        if not has_run(folder):
            run_experiment(cell.config, folder, resume=True, device=device, listen=listen)
        missing = [measure for measure in cell.measures if not _place(folder, measure).is_file()]
        if missing:
            model, images = ContinualClassifier.load(folder / "model", device=device), load_test_images(cell.config)
            for measure in missing:
                write_json(_place(folder, measure), measure(model, images))
    except Exception as error:  # whatever it is, the other cells can still be run
        _write_failure(cell, home, f"{type(error).__name__}: {error}".partition("\n")[0])
    else:
        _failure_place(folder).unlink(missing_ok=True)


def _place(folder: Path, measure: Measure) -> Path:
    return folder / f"{measure.__name__}.json"


def _failure_place(folder: Path) -> Path:
    return folder.with_name(f"{folder.name}.failed.json")


def _write_failure(cell: Cell, home: Path, reason: str) -> None:
    when = datetime.now(timezone.utc).isoformat(timespec="seconds")
    document = {"reason": reason, "when": when, "config": cell.config.model_dump(mode="json")}
    write_json(_failure_place(home / cell.name), document)


# -- several at once -----------------------------------------------------------------------------------------------------------


def _side_by_side(cells: Sequence[Cell], home: Path, device: str, jobs: int, watch: GridProgress) -> None:
    """A process for each cell, `jobs` at a time. What comes out is read from the disk, so a process may even crash."""
    spawn, threads = get_context("spawn"), max(1, torch.get_num_threads() // jobs)
    waiting, running = deque(cells), dict[Any, tuple[Cell, BaseProcess]]()
    try:
        while waiting or running:
            while waiting and len(running) < jobs:
                cell = waiting.popleft()
                started = spawn.Process(target=_alone, args=(cell, home, device, threads), daemon=True)
                with _undisturbed():
                    started.start()
                running[started.sentinel] = (cell, started)
                watch.began(cell)
            for sentinel in connection.wait(list(running)):
                cell, process = running.pop(sentinel)
                process.join()
                if process.exitcode:
                    _write_failure(cell, home, f"its process ended with status {process.exitcode}")
                watch.ended(cell, read_failure(home / cell.name))
    finally:
        for _, process in running.values():  # only after Ctrl-C; a run can be ended at any moment
            process.terminate()
            process.join()


@contextmanager
def _undisturbed() -> Iterator[None]:
    """Ctrl-C waits while a child is started, so that neither side is caught half-way; in the child until that ignores it."""
    if threading.current_thread() is not threading.main_thread() or not hasattr(signal, "pthread_sigmask"):
        yield
        return
    asked: list[bool] = []
    before = signal.signal(signal.SIGINT, lambda *_: asked.append(True))
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        signal.signal(signal.SIGINT, before)
    if asked:
        raise KeyboardInterrupt


def _alone(cell: Cell, home: Path, device: str, threads: int) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to answer
    threading.Thread(target=_end_with_parent, daemon=True).start()
    torch.set_num_threads(threads)
    run_cell(cell, home, device)


def _end_with_parent() -> None:
    """A killed parent cannot end its children, and a cell must not be run by two."""
    parent = parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)
