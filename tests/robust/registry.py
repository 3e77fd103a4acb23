"""All attacks by name; each is the constant `ATTACK` of a file here."""

from __future__ import annotations

from importlib import import_module

from robust.attack import Attack

NAMES = (
    "images",
    "models",
    "checkpoints",
    "archives",
    "runs",
    "options",
    "inputs",
    "kills",
    "disks",
    "folders",
    "concurrency",
    "clocks",
)


def get_attack(name: str) -> Attack:
    """Return an attack; its file is imported only now, since some of what they need is slow to import."""
    attack: Attack = import_module(f"robust.{name}").ATTACK
    return attack
