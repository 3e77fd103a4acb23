"""Several commands on one model at the same time, while others read it: one change at a time is made, and none is lost."""

from __future__ import annotations

import shutil
import time
from functools import partial
from pathlib import Path
from random import Random

from helpers import write_squares

from caprompt import checkpoint
from robust.attack import Attack, LostError, RefusedError
from robust.forks import Ended, check_clean, read_model, start_fork
from robust.material import make_model, read_plan, write_plan
from robust.scenes import run_main

COMMANDS = {
    "learn blue": (("learn", "blue"), 1),
    "learn yellow": (("learn", "yellow"), 1),
    "learn more": (("learn", "more"), 1),
    "rename": (("rename", "red", "crimson"), 1),
    "join": (("join", "red", "green", "--into", "any"), 1),
    "undo": (("undo",), -1),
    "evaluate": (("evaluate", "week1"), 0),
    "info": (("info",), 0),
}  # words, and by how many lessons and edits a success changes the number of them


def prepare(folder: Path) -> Path:
    """Make a model of a lesson and some edits, and images for more lessons."""
    model = make_model(folder, {"week1": ["red", "green"], "blue": ["blue"], "yellow": ["yellow"]})
    write_squares(folder / "more", ["red"], start=30)
    for old, new in (("green", "leaf"), ("leaf", "green")) * 2:  # more versions than commands can undo
        model.rename(old, new)
        model.save(folder / "pets")
    for name in COMMANDS:  # so that forks need not import anything
        shutil.copytree(folder / "pets", folder / "copy")
        run_main(_list_words(name, folder, folder / "copy"))
        shutil.rmtree(folder / "copy")
    return folder


def _list_words(name: str, base: Path, model: Path) -> list[str]:
    words = COMMANDS[name][0]
    sources = {"learn", "evaluate"}
    return [words[0], str(model), *(str(base / word) if words[0] in sources else word for word in words[1:])]


def damage(base: Path, folder: Path, rng: Random, number: int) -> str:
    """Choose two to four commands, and by how much each starts later than the one before."""
    plan = {
        "commands": [rng.choice(sorted(COMMANDS)) for _ in range(rng.randint(2, 4))],
        "delays": [rng.choice((0.0, 0.0, rng.uniform(0, 0.3))) for _ in range(4)],
    }
    return write_plan(folder, plan)


def use(base: Path, folder: Path) -> None:
    """Run the commands, with a reader beside them; then count what they have done."""
    plan = read_plan(folder)
    model = folder / "pets"
    shutil.copytree(base / "pets", model)
    before = len(checkpoint.read_config(model)["lessons"])
    stop = folder / "stop"
    reader = start_fork(lambda: _read_until(model, stop))
    running = []
    for name, delay in zip(plan["commands"], plan["delays"], strict=False):
        running.append(start_fork(partial(run_main, _list_words(name, base, model))))
        time.sleep(delay)
    ended = [each.wait() for each in running]
    stop.touch()
    watched = reader.wait()
    if watched.status:
        raise LostError(f"a reader failed: {watched.stderr}")
    _check_count(model, before, plan["commands"], ended)
    check_clean(model)
    refusals = [each for each in ended if each.status]
    for each in refusals:
        try:
            each.check()
        except RefusedError:
            continue
    if refusals:
        refusals[0].check()


def _read_until(model: Path, stop: Path) -> int:
    """Read a model again and again; every version must be whole."""
    while not stop.exists():
        checkpoint.read(model)
    return 0


def _check_count(model: Path, before: int, names: list[str], ended: list[Ended]) -> None:
    """Raise `LostError` unless every command that succeeded has left its lesson or edit."""
    read_model(model)
    change = sum(COMMANDS[name][1] for name, each in zip(names, ended, strict=True) if each.status == 0)
    after = len(checkpoint.read_config(model)["lessons"])
    if after != before + change:
        statuses = [each.status for each in ended]
        raise LostError(f"{names} ended with {statuses}; there were {before} lessons and edits, and now there are {after}")


ATTACK = Attack("concurrency", "several writers and readers of one model", 120, 6, prepare, damage, use, limit=30)
