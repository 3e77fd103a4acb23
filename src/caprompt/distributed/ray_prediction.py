"""Bulk prediction on a Ray cluster, by Ray Data: actors hold the model and take a shard at a time.

What travels are lists of paths; an actor reads the images itself, as many at a time as fit in its memory, and takes the next shard
when it has written the last. Ray Data starts an actor again that has died, and its shard with it, a few times: an image that
kills whoever decodes it ends the call.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from caprompt.distributed.bulk_prediction import ModelSpec, Shard, ShardPredictor, ShardResult
from caprompt.distributed.jobs import RETRIES
from caprompt.distributed.ray_cluster import check_resources, choose_gpus, connect, count_slots, count_threads
from caprompt.errors import CapromptError, InputError, first_line

__all__ = ["RayRunner"]

IN_FLIGHT = 2  # shards that an actor has been given: the one it works at, and the next


@dataclass(frozen=True)
class RayRunner:
    """Predicts shards on the Ray cluster at an address, with as many actors as it has room for, or at most `limit`."""

    address: str
    cpus: float = 1
    gpus: float | None = None
    limit: int | None = None

    def __call__(self, spec: ModelSpec, shards: Sequence[Shard], folder: Path, driver: str) -> Iterator[ShardResult]:
        """Yield the result of each shard, in any order; see `Runner`."""
        with connect(self.address) as ray:
            gpus = choose_gpus(ray, self.gpus)
            check_resources(ray, self.cpus, gpus)
            slots = max(1, min(count_slots(ray, self.cpus, gpus), self.limit or len(shards), len(shards)))
            rows = [{"number": shard.number, "names": [os.fsencode(name) for name in shard.names]} for shard in shards]
            needs = {"num_cpus": self.cpus, "num_gpus": gpus, "max_restarts": RETRIES, "max_task_retries": RETRIES}
            arguments = (spec, folder, driver, Path.cwd(), count_threads(self.cpus))
            stream = ray.remote(_Stream).options(num_cpus=0).remote(rows, arguments, slots, needs)
            try:
                for _ in shards:
                    yield _read_outcome(ray.get(stream.get_next.remote()))
            except ray.exceptions.RayError as error:
                message = f"the Ray cluster could not finish: {first_line(error)}; the same command goes on where it stopped"
                raise InputError(message) from error


class _Stream:
    """The outcomes of all shards, one after another. It runs on the cluster, since Ray Data does not run over ray:// addresses."""

    def __init__(self, rows: list[dict[str, Any]], arguments: tuple[Any, ...], slots: int, needs: dict[str, float]) -> None:
        from ray import data

        data.DataContext.get_current().enable_progress_bars = False
        logging.getLogger("ray.data").setLevel(logging.ERROR)
        # A block for each shard, so that shards are what actors are given.
        dataset = data.from_items(rows, override_num_blocks=len(rows)).map(
            _Actor,
            fn_constructor_args=arguments,
            compute=data.ActorPoolStrategy(size=slots, max_tasks_in_flight_per_actor=IN_FLIGHT),
            **needs,
        )
        self.outcomes = iter(dataset.iter_rows())

    def get_next(self) -> str:
        return str(next(self.outcomes)["outcome"])


class _Actor:
    """A worker of the cluster, with the model in its memory. What goes wrong is returned, since Ray would wrap it."""

    def __init__(self, spec: ModelSpec, folder: Path, driver: str, directory: Path, threads: int) -> None:
        torch.set_num_threads(threads)  # of a local cluster, each would have those of the command that started it
        self.folder = folder
        self.predictor: ShardPredictor | None = None
        self.error: Exception | None = None
        try:
            os.chdir(directory)  # the driver's: paths may be relative to it
            self.predictor = ShardPredictor(spec, folder, driver)
        except (CapromptError, OSError) as error:
            self.error = error

    def __call__(self, row: dict[str, Any]) -> dict[str, str]:
        if self.predictor is None:
            return {"outcome": _encode(self.error)}
        number = int(row["number"])
        shard = Shard(number, tuple(map(os.fsdecode, row["names"])), self.folder / f"{number:05d}.jsonl")
        try:
            return {"outcome": _encode(self.predictor(shard))}
        except (CapromptError, OSError) as error:
            return {"outcome": _encode(error)}


def _encode(outcome: ShardResult | Exception | None) -> str:
    """Return what became of a shard as JSON.

    >>> _read_outcome(_encode(ShardResult(3, images=50, unreadable=1, seconds=0.5)))
    ShardResult(number=3, images=50, unreadable=1, seconds=0.5)
    """
    if isinstance(outcome, ShardResult):
        return json.dumps({"result": asdict(outcome)})
    if isinstance(outcome, OSError):
        return json.dumps({"os_error": [outcome.errno, outcome.strerror, outcome.filename and str(outcome.filename)]})
    return json.dumps({"error": str(outcome)})


def _read_outcome(text: str) -> ShardResult:
    """Return the result of a shard, or raise what its actor met."""
    outcome = json.loads(text)
    if "result" in outcome:
        return ShardResult(**outcome["result"])
    if "os_error" in outcome:
        raise OSError(*outcome["os_error"])
    raise InputError(outcome["error"])
