"""Storage that fails at every single operation of a command: full, over quota, read-only, without permission, or broken.

A fault is an error at one operation, or from one operation on. Others are a limit on the size of files, at which the system itself
ends a write in the middle.
"""

from __future__ import annotations

import errno
from functools import partial
from pathlib import Path
from random import Random

from robust.attack import Attack, LostError
from robust.forks import limit_file_size, make_fault, run_fork
from robust.material import write_plan
from robust.scenes import Scene, begin_planned, make_scenes

NAMES = ("learn", "run", "undo", "rename", "evaluate")
CODES = {"full": errno.ENOSPC, "quota": errno.EDQUOT, "read-only": errno.EROFS, "permission": errno.EACCES, "broken": errno.EIO}
PREPARE = partial(make_scenes, names=NAMES)
MAX_FILE = 200_000  # bytes; no file of these models is larger


def damage(scenes: dict[str, Scene], folder: Path, rng: Random, number: int) -> str:
    """Choose a command, a fault and an operation; over all numbers, every operation of every command is met."""
    operations = [(name, operation) for name in NAMES for operation in range(scenes[name].operations)]
    Random(0).shuffle(operations)  # so that a few of them are of all commands
    name, operation = operations[number % len(operations)]
    plan: dict[str, object] = {"command": name, "operation": operation, "lasting": rng.random() < 0.7}
    plan["fault"] = rng.choice(("full", "full", "full", *CODES, "size"))
    if plan["fault"] == "size":
        plan["bytes"] = int(MAX_FILE ** rng.random())
    return write_plan(folder, plan)


def use(scenes: dict[str, Scene], folder: Path) -> None:
    """Run the command with the fault, check the model, and repeat the command without it."""
    plan, scene, call = begin_planned(scenes, folder)
    if plan["fault"] == "size":
        ended = run_fork(call, setup=lambda: limit_file_size(plan["bytes"]))
    else:
        fault = make_fault(CODES[plan["fault"]], plan["operation"], lasting=plan["lasting"], where=folder)
        ended = run_fork(call, folder=folder, hook=fault)
    version = scene.classify(folder)
    if ended.status == 0 and version != "new" and scene.name != "evaluate":  # which changes no model
        raise LostError(f"the command succeeded, but the model is {version}")
    if ended.status != 0 and version == "new" and scene.name not in ("run", "evaluate"):
        raise LostError(f"the command failed, but the model is changed: {ended.stderr}")
    scene.finish(folder)
    ended.check()


ATTACK = Attack("disks", "full, read-only and broken storage at every operation", 700, 12, PREPARE, damage, use, limit=30)
