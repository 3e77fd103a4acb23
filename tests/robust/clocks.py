"""Clocks that jump: between and within commands, files of the past and of the future, and leases seen by such clocks."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable
from datetime import datetime, timezone, tzinfo
from pathlib import Path
from random import Random

from caprompt import checkpoint
from caprompt.classifier import state
from caprompt.cli.commands import evaluate
from caprompt.distributed.leases import Lease
from caprompt.serve.uploads import EXPIRY, UploadStore
from robust.attack import Attack, InvalidError, LostError
from robust.forks import check_clean, read_model, run_fork
from robust.material import make_model, read_plan, write_plan
from robust.scenes import run_main

TIMES = (0, 1, 86_400, 946_684_800, 1_700_000_000, 2**31 - 1, 2**31, 4_102_444_800, 253_402_300_000)  # seconds since 1970
COLORS = ("blue", "yellow", "purple")


def prepare(folder: Path) -> Path:
    """Make a model and images of further classes."""
    make_model(folder, {"week1": ["red", "green"], **{color: [color] for color in COLORS}})
    for words in (
        ["learn", folder / "copy", folder / "blue"],
        ["evaluate", folder / "copy", folder / "week1"],
        ["undo", folder / "copy"],
    ):
        shutil.copytree(folder / "pets", folder / "copy", dirs_exist_ok=True)
        run_main([str(word) for word in words])
    return folder


def damage(base: Path, folder: Path, rng: Random, number: int) -> str:
    """Choose the times of the commands and of the files between them."""
    plan = {
        "times": [[rng.choice(TIMES) + rng.random() for _ in range(6)] for _ in range(8)],
        "files": [rng.choice((None, *TIMES)) for _ in range(8)],
        "lessons": rng.randint(1, len(COLORS)),
    }
    return write_plan(folder, plan)


def use(base: Path, folder: Path) -> None:
    """Teach, evaluate and undo, each with another clock; a lease and an upload of another time stay with their owners."""
    plan = read_plan(folder)
    model = folder / "pets"
    shutil.copytree(base / "pets", model)
    versions = [read_model(model)]
    steps = iter(zip(plan["times"], plan["files"], strict=True))

    def call(*words: object) -> None:
        times, stamp = next(steps)
        if stamp is not None:
            for path in (*model.rglob("*"), model):
                os.utime(path, (stamp, stamp))
        ended = run_fork(lambda: run_main([str(word) for word in words]), setup=_make_clock(times))
        if ended.status:
            raise AssertionError(f"{words[0]} fails: {ended.stderr}")

    for color in COLORS[: plan["lessons"]]:
        call("learn", model, base / color)
        versions.append(read_model(model))
    call("evaluate", model, base / "week1")
    dates = [lesson["date"] for lesson in checkpoint.read_config(model)["lessons"]]
    if len(dates) != len(versions) or not all(datetime.fromisoformat(date).tzinfo for date in dates):
        raise InvalidError(f"dates {dates}")
    for expected in reversed(versions[:-1]):
        call("undo", model)
        if read_model(model) != expected:
            raise LostError("undo has not restored the version before")
    check_clean(model)
    _check_lease(folder, plan)
    _check_upload(folder, plan)


def _make_clock(times: list[float]) -> Callable[[], None]:
    """Return a function that sets the clock of a process to a sequence of times, one after another."""

    def set_clock() -> None:
        calls = 0

        def now() -> float:
            nonlocal calls
            calls += 1
            return times[calls % len(times)]

        class Clock(datetime):
            @classmethod
            def now(cls, tz: tzinfo | None = None) -> datetime:  # type: ignore[override]
                return datetime.fromtimestamp(now(), tz or timezone.utc)

        time.time = now
        state.datetime = evaluate.datetime = Clock  # type: ignore[misc]

    return set_clock


def _check_lease(folder: Path, plan: dict[str, list[int]]) -> None:
    """A lease whose file is of another time still belongs to its owner, and one without an owner can be taken."""
    owner = Lease(folder / "leases" / "x", heartbeat=60.0)
    owner.acquire()
    for stamp in plan["files"]:
        os.utime(owner.path, (stamp or 0, stamp or 0))
        if Lease(folder / "leases" / "x", heartbeat=60.0).acquire(wait=False):
            raise LostError("a lease was taken from its owner, who is alive")
    owner.release()
    other = Lease(folder / "leases" / "x", heartbeat=60.0)
    if not other.acquire(wait=False):
        raise InvalidError("a lease that was let go cannot be taken")
    other.release()


def _check_upload(folder: Path, plan: dict[str, list[int]]) -> None:
    """An upload from the future is kept, whatever the clock says."""
    store = UploadStore(folder / "uploads")
    upload = store.create()
    os.utime(upload.folder, (time.time() + 2 * EXPIRY, time.time() + 2 * EXPIRY))
    store.remove_expired([])
    if not upload.folder.is_dir():
        raise LostError("an upload from the future was deleted")


ATTACK = Attack("clocks", "clocks that jump to the past and the future", 60, 3, prepare, damage, use, limit=30)
