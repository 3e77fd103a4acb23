"""Folders that vanish while a command uses them: of the model, the images, the backbone, or the run. The rest is `disks`."""

from __future__ import annotations

import os
import shutil
from dataclasses import replace
from functools import partial
from pathlib import Path
from random import Random

from caprompt import checkpoint
from robust.attack import Attack, LostError
from robust.forks import Hook, read_content, read_model, run_fork
from robust.material import read_plan, write_plan
from robust.scenes import Scene, make_scenes

NAMES = ("learn", "run", "undo", "rename", "evaluate")
PREPARE = partial(make_scenes, names=NAMES)
SOURCES = ("tiny.safetensors", "week1", "week2", "data", "taught", "pets")  # of a scene
FIRST = 10  # operation at which the model has been found: before, `learn` rightly makes a new one, with the default backbone


def damage(scenes: dict[str, Scene], folder: Path, rng: Random, number: int) -> str:
    """Choose a command, what vanishes, and at which operation; half of it comes back at a later one."""
    name = NAMES[number % len(NAMES)]
    images = {"learn": "base/week2", "run": "base/data", "evaluate": "base/week1"}.get(name, "work")
    target = rng.choice(("work/run" if name == "run" else "work/pets", images, "work", "base"))
    at = rng.randrange(FIRST, scenes[name].operations)
    back = at + rng.randint(1, 30) if rng.random() < 0.5 else None
    write_plan(folder, {"command": name, "target": target, "at": at, "back": back})
    return f"{name}: {target} at {at}, back at {back}"


def use(scenes: dict[str, Scene], folder: Path) -> None:
    """Run the command on a copy of everything, of which a part vanishes; put it back and check the model."""
    plan = read_plan(folder)
    base, work, away = folder / "base", folder / "work", folder / "away"
    base.mkdir()
    work.mkdir()
    for name in SOURCES:
        source = scenes[plan["command"]].base / name
        (shutil.copytree if source.is_dir() else shutil.copy)(source, base / name)
    scene = replace(scenes[plan["command"]], base=base)
    scene.begin(work)
    target = folder / plan["target"]
    ended = run_fork(scene.make_call(work), folder=folder, hook=_make_vanishing(target, away, plan["at"], plan["back"]))
    model = scene.find_model(work)
    if away.exists():
        if target.exists():  # made anew by the command
            _check_remains(scene, model)
            shutil.rmtree(target)
        away.rename(target)
    version = scene.classify(work)
    if ended.status == 0 and version != "new" and scene.name != "evaluate" and not plan["target"].startswith("work"):
        raise LostError(f"the command succeeded, but the model is {version}")
    scene.finish(work)
    ended.check()


def _check_remains(scene: Scene, model: Path) -> None:
    """Raise `LostError` for half a model where the folder was before: there is the new one, one of a first lesson, or none."""
    if read_model(model) and read_content(model) not in (scene.new, *scene.steps) and checkpoint.read_config(model)["calls"] != 1:
        raise LostError("where the model was, there is another one")


def _make_vanishing(target: Path, away: Path, at: int, back: int | None) -> Hook:
    def move(_: str, number: int) -> None:
        if number >= at and not away.exists() and target.exists() and (back is None or number < back):
            os.rename(target, away)  # noqa: PTH104
        elif back is not None and number >= back and away.exists() and not target.exists():
            os.rename(away, target)  # noqa: PTH104

    return move


ATTACK = Attack("folders", "folders that vanish, and come back", 120, 8, PREPARE, damage, use, limit=30)
