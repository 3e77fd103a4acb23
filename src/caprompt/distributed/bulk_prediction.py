"""Predictions for any number of images into one file, shard by shard: a stopped call goes on where it stopped.

While it runs, the folder `predictions.parquet.parts` holds
    plan.json       what the predictions depend on; a call with another plan is refused
    00000.jsonl     the rows of the first shard, written when all of them are known; then the next
    leases/         that of the one call that is at work
At the end, the parts become one file in the order of the paths, and the folder is removed: the parts first, then the plan, so
that parts never count without the plan that they are of.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from caprompt.classifier import ContinualClassifier
from caprompt.classifier.file_prediction import ImageName, predict_each
from caprompt.data.images import SKIP_HINT
from caprompt.distributed.leases import EXPIRY, HEARTBEAT, hold_driver_lease, sees_driver
from caprompt.distributed.prediction_files import check_format, make_row, merge_parts, read_part, write_part
from caprompt.errors import InputError, StorageError
from caprompt.protocols import make_leak_warning
from caprompt.utils.files import read_json, write_json

__all__ = ["SHARD_IMAGES", "BulkResult", "ModelSpec", "Runner", "Shard", "ShardPredictor", "ShardResult", "predict_to_file"]

SHARD_IMAGES = 1024  # lost at most when a process is killed
FORMAT = 1
PLAN, LEASES = "plan.json", "leases"
EXAMPLES = 10  # unreadable images that are reported one by one; all are in the file


@dataclass(frozen=True)
class ModelSpec:
    """A saved model and how it predicts, as plain values that can be sent to other processes."""

    folder: Path
    backbone: str | None = None
    device: str = "auto"
    top: int = 3
    options: Mapping[str, Any] = field(default_factory=dict)
    identity: str | None = None  # of the version that the call began with; None is any

    def load(self) -> ContinualClassifier:
        """Load the model."""
        return ContinualClassifier.load(self.folder, backbone=self.backbone, device=self.device)


@dataclass(frozen=True)
class Shard:
    """Consecutive images, and the file that their rows go to."""

    number: int
    names: tuple[ImageName, ...]
    part: Path


@dataclass(frozen=True)
class ShardResult:
    """What became of a shard."""

    number: int
    images: int
    unreadable: int
    seconds: float


@dataclass(frozen=True)
class BulkResult:
    """What became of all images."""

    images: int
    unreadable: int
    examples: tuple[str, ...]  # sentences about the first unreadable images
    warnings: tuple[str, ...]  # about the validity of the predictions


class ShardPredictor:
    """A model in memory that predicts shards one after another; `driver` is the token of the call that it works for."""

    def __init__(
        self, spec: ModelSpec, folder: Path, driver: str, model: ContinualClassifier | None = None, expiry: float = EXPIRY
    ) -> None:
        if not sees_driver(folder / LEASES, driver, expiry):
            raise InputError(f"'{folder.parent}' is not on storage that all machines share; choose another output with out=...")
        self.spec, self.folder, self.driver, self.expiry = spec, folder, driver, expiry
        self.model = model or spec.load()
        if spec.identity not in (None, self.model.identity):
            raise InputError(
                f"the model in '{spec.folder}' is another version than the one that the call began with; repeat the command"
            )

    def __call__(self, shard: Shard) -> ShardResult:
        """Predict the images of a shard and write its part; raise `StorageError`, and write none, if an image cannot be got at."""
        start_time = time.perf_counter()
        rows = []
        for name, outcome in predict_each(self.model, shard.names, self.spec.top, self.spec.options):
            if isinstance(outcome, StorageError):
                reason = str(outcome).removesuffix(SKIP_HINT)
                raise StorageError(f"{reason}; make sure that it can be read, and repeat the command: it goes on where it stopped")
            rows.append(make_row(name, outcome))
        if not sees_driver(self.folder / LEASES, self.driver, self.expiry):
            raise InputError(f"the call that began '{self.folder}' has ended, or another one has taken over; repeat the command")
        write_part(shard.part, rows)
        unreadable = sum(row["error"] is not None for row in rows)
        return ShardResult(shard.number, len(rows), unreadable, time.perf_counter() - start_time)


#: Predicts shards in any order: called with the model, the shards, the folder of the parts and the driver's token.
Runner = Callable[[ModelSpec, Sequence[Shard], Path, str], Iterable[ShardResult]]


@dataclass(frozen=True)
class _Plan:
    """The shards of a call, and what identifies it."""

    folder: Path
    names: Sequence[ImageName]
    shard_images: int
    identity: Mapping[str, Any]

    @cached_property
    def shards(self) -> list[Shard]:
        starts = range(0, len(self.names), self.shard_images)
        return [
            Shard(number, tuple(self.names[start : start + self.shard_images]), self.folder / f"{number:05d}.jsonl")
            for number, start in enumerate(starts)
        ]

    def check(self, output: Path) -> None:
        """Raise if the folder holds parts of another plan; if there is none, write this one, and remove parts of an unknown one."""
        before = read_json(self.folder / PLAN)
        if not before:
            self.remove()
            write_json(self.folder / PLAN, self.identity)
            return
        different = [name for name in self.identity if before.get(name) != self.identity[name]]
        if different:
            raise InputError(
                f"'{output}' was begun with another {', '.join(different)}; repeat that call, choose another output with out=..., "
                f"or remove '{self.folder}'"
            )

    def remove(self) -> None:
        """Delete all parts and drafts, and the plan last; only while holding the driver's lease."""
        files = [path for path in self.folder.iterdir() if path.is_file() or path.is_symlink()]
        for path in sorted(files, key=lambda path: path.name == PLAN):
            path.unlink(missing_ok=True)


def predict_to_file(
    spec: ModelSpec,
    names: Sequence[ImageName],
    output: Path,
    *,
    runner: Runner | None = None,
    on_shard: Callable[[ShardResult], None] = lambda result: None,
    shard_images: int = SHARD_IMAGES,
    heartbeat: float = HEARTBEAT,
    expiry: float = EXPIRY,
) -> BulkResult:
    """Predict images into a file of Parquet or JSON lines, in the order of their paths; go on with what an earlier call has left.

    `runner` is another than this process. `on_shard` is called after each shard, first for those that were done before.
    """
    check_format(output)
    folder = output.with_name(f"{output.name}.parts").absolute()
    _check_absent(output)
    model = spec.load()
    spec = replace(spec, identity=model.identity)
    model.predict([np.zeros((8, 8, 3), np.uint8)], top=spec.top, **spec.options)  # before anything is written
    names = sorted(names, key=str)
    plan = _Plan(folder, names, shard_images, _identify(model, spec, names, shard_images))
    with (
        _remove_if_empty(folder),
        hold_driver_lease(folder / LEASES, output, heartbeat=heartbeat, expiry=expiry) as lease,
        _remove_if_nothing_is_done(plan, lease.token),
    ):
        _check_absent(output)  # another call may have finished since
        plan.check(output)
        pending = [shard for shard in plan.shards if not shard.part.is_file()]
        for shard in plan.shards:
            if shard.part.is_file():
                on_shard(ShardResult(shard.number, len(shard.names), 0, 0.0))
        run = runner or (lambda *arguments: _run_here(model, *arguments))
        for result in run(spec, pending, folder, lease.token) if pending else ():
            on_shard(result)
        summary = _Summary(model)
        draft = folder / f"all{output.suffix}"
        merge_parts(summary.watch(read_part(shard.part) for shard in plan.shards), draft, output.suffix, model.labels)
        draft.replace(output)
        plan.remove()
    return summary.get_result()


def _check_absent(output: Path) -> None:
    if output.exists():
        raise InputError(f"'{output}' exists; remove it, or choose another output with out=...")


@contextmanager
def _remove_if_empty(folder: Path) -> Iterator[None]:
    """Remove the folder of the parts, once the lease is gone from it, unless there is something in it."""
    try:
        yield
    finally:
        with suppress(OSError):
            folder.rmdir()


@contextmanager
def _remove_if_nothing_is_done(plan: _Plan, driver: str) -> Iterator[None]:
    """Remove the plan if the call fails before there is any part, unless another call has taken over."""
    try:
        yield
    except BaseException:
        has_parts = any(plan.folder.glob("[0-9]*.jsonl"))  # of whatever plan
        if not has_parts and sees_driver(plan.folder / LEASES, driver, timeout=0):
            plan.remove()
        raise


def _run_here(
    model: ContinualClassifier, spec: ModelSpec, shards: Sequence[Shard], folder: Path, driver: str
) -> Iterator[ShardResult]:
    return map(ShardPredictor(spec, folder, driver, model), shards)


def _identify(model: ContinualClassifier, spec: ModelSpec, names: Sequence[ImageName], shard_images: int) -> dict[str, Any]:
    """Return what the parts depend on; its keys are words of the message about another plan."""
    digest = hashlib.sha256()
    for name in names:
        digest.update(str(name).encode(errors="surrogateescape") + b"\0")
    options = {"top": spec.top, **spec.options}
    return {
        "format": FORMAT,
        "model": model.identity,
        "list of images": {"images": len(names), "sha256": digest.hexdigest()},
        "size of shards": shard_images,
        "setting": {name: options[name] for name in sorted(options)},
    }


class _Summary:
    """What is told about all rows, gathered while they are merged."""

    def __init__(self, model: ContinualClassifier) -> None:
        self.model = model
        self.scores: list[float] = []
        self.images = 0
        self.examples: list[str] = []

    def watch(self, parts: Iterable[list[dict[str, Any]]]) -> Iterator[list[dict[str, Any]]]:
        """Yield the parts as they are."""
        for rows in parts:
            self.images += len(rows)
            self.scores += [row["score"] for row in rows if row["error"] is None]
            if len(self.examples) < EXAMPLES:
                self.examples += [row["error"] for row in rows if row["error"] is not None][: EXAMPLES - len(self.examples)]
            yield rows

    def get_result(self) -> BulkResult:
        """Return the result."""
        warnings = (make_leak_warning(self.model.method.options), self.model.calibration.describe_drift(self.scores))
        return BulkResult(self.images, self.images - len(self.scores), tuple(self.examples), tuple(filter(None, warnings)))
