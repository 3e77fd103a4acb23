"""SIGKILL at random moments of `learn`, `run`, `undo` and a lesson of `serve`.

The model must then be the old or the new one, and the call must come to the same end when it is resumed or repeated. Half of the
moments are chosen among the file operations of a call, at which a model is in most danger, and half among the seconds it takes.
"""

from __future__ import annotations

import signal
from functools import partial
from pathlib import Path
from random import Random

from robust.attack import Attack
from robust.forks import make_killer, run_fork
from robust.material import write_plan
from robust.scenes import Scene, begin_planned, make_scenes

NAMES = ("learn", "run", "undo", "serve")
PREPARE = partial(make_scenes, names=NAMES)


def damage(scenes: dict[str, Scene], folder: Path, rng: Random, number: int) -> str:
    """Choose a command and a moment, as a share of its file operations or seconds."""
    plan = {"command": NAMES[number % len(NAMES)], "by": ("operations", "seconds")[number // len(NAMES) % 2], "share": rng.random()}
    return write_plan(folder, plan)


def use(scenes: dict[str, Scene], folder: Path) -> None:
    """Kill the command at the moment, and go on."""
    plan, scene, call = begin_planned(scenes, folder)
    if plan["by"] == "operations":
        ended = run_fork(call, folder=folder, hook=make_killer(int(plan["share"] * scene.operations)))
    else:
        ended = run_fork(call, kill_after=plan["share"] * scene.seconds)
    if ended.status not in (0, -signal.SIGKILL):
        raise AssertionError(f"exit status {ended.status}: {ended.stderr}")
    scene.classify(folder)
    scene.finish(folder)


ATTACK = Attack("kills", "SIGKILL at random moments of learn, run, undo and serve", 200, 8, PREPARE, damage, use, limit=30)
