"""SIGKILL at random moments of `learn`, `run`, `undo` and a lesson of `serve`.

The model must then be the old or the new one, and the call must come to the same end when it is resumed or repeated. Half of the
moments are chosen among the file operations of a call, at which a model is in most danger, and half among the seconds it takes.
"""

from __future__ import annotations

import json
import signal
from pathlib import Path
from random import Random

from robust.attack import Attack
from robust.forks import make_killer, run_fork
from robust.scenes import Scene, make_scenes

NAMES = ("learn", "run", "undo", "serve")


def prepare(folder: Path) -> dict[str, Scene]:
    """Run each command once undisturbed."""
    return make_scenes(folder, NAMES)


def damage(scenes: dict[str, Scene], folder: Path, rng: Random, number: int) -> str:
    """Choose a command and a moment, as a share of its file operations or seconds."""
    plan = {"command": NAMES[number % len(NAMES)], "by": ("operations", "seconds")[number // len(NAMES) % 2], "share": rng.random()}
    (folder / "plan.json").write_text(json.dumps(plan))
    return json.dumps(plan)


def use(scenes: dict[str, Scene], folder: Path) -> None:
    """Kill the command at the moment, and go on."""
    plan = json.loads((folder / "plan.json").read_text())
    scene = scenes[plan["command"]]
    scene.begin(folder)
    call = scene.make_call(folder)
    if plan["by"] == "operations":
        ended = run_fork(call, folder=folder, hook=make_killer(int(plan["share"] * scene.operations)))
    else:
        ended = run_fork(call, kill_after=plan["share"] * scene.seconds)
    if ended.status not in (0, -signal.SIGKILL):
        raise AssertionError(f"exit status {ended.status}: {ended.stderr}")
    scene.classify(folder)
    scene.finish(folder)


ATTACK = Attack("kills", "SIGKILL at random moments of learn, run, undo and serve", 200, 8, prepare, damage, use, limit=30)
