"""Streams of tasks: in which order classes come, which come together, and what is held out of the training images."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from typing import Literal, TypeAlias

import numpy as np

from caprompt.data.class_names import natural_key
from caprompt.data.duplicates import contents
from caprompt.data.samples import Samples
from caprompt.errors import InputError, did_you_mean

__all__ = ["ClassOrder", "Tasks", "class_order", "hold_out", "natural_key", "split_tasks"]

ClassOrder: TypeAlias = Literal["natural", "shuffled"]
Tasks: TypeAlias = int | Sequence[int] | Sequence[Sequence[str]]


def class_order(classes: Sequence[str], order: ClassOrder, seed: int) -> list[str]:
    """The classes as people count them, or shuffled by `seed`; the order they are given in does not matter.

    >>> class_order(["b", "a10", "a2"], "natural", seed=0)
    ['a2', 'a10', 'b']
    """
    names = sorted(set(classes), key=natural_key)
    if order == "natural":
        return names
    if order == "shuffled":
        return [names[i] for i in np.random.default_rng(seed).permutation(len(names))]
    raise InputError(f"unknown class order '{order}'; it is 'natural' or 'shuffled'")


def split_tasks(classes: Sequence[str], tasks: Tasks) -> list[list[str]]:
    """The classes of each task, from a number of tasks, from the tasks' sizes, or from the tasks themselves.

    >>> split_tasks(["a", "b", "c", "d", "e"], 2)
    [['a', 'b', 'c'], ['d', 'e']]
    >>> split_tasks(["a", "b", "c"], [1, 2])
    [['a'], ['b', 'c']]
    >>> split_tasks(["a", "b", "c"], [["c", "a"], ["b"]])
    [['c', 'a'], ['b']]
    """
    if isinstance(tasks, (int, np.integer)):
        return _by_size(classes, _even_sizes(len(classes), int(tasks)))
    sizes = [task for task in tasks if isinstance(task, (int, np.integer))]
    named = [task for task in tasks if not isinstance(task, (int, np.integer, str))]
    if 0 < len(sizes) == len(tasks):
        return _by_size(classes, sizes)
    if 0 < len(named) == len(tasks):
        return _by_name(classes, [list(task) for task in named])
    raise InputError(f"cannot split classes into tasks by {tasks!r}; give a number, a list of sizes or lists of names")


def hold_out(samples: Samples, share: float, seed: int) -> tuple[Samples, Samples]:
    """Training and held-out images: about `share` of every class's different pictures goes to the second part.

    A class gives at least one picture and keeps at least one (so a class of one picture gives none). Which pictures of a
    class are held out does not depend on the other classes. Copies of a picture stay together, those with another label in
    the first part. Both parts keep the order of `samples`.
    """
    if not 0 <= share < 1:
        raise InputError(f"the share of images to hold out is {share}; it must be at least 0 and less than 1")
    if share == 0:
        return samples.select(range(len(samples))), samples.select([])
    labels, content = np.array(samples.labels), np.array(contents(samples.pictures))
    held = np.zeros(len(samples), dtype=bool)
    for name in samples.classes:
        members = np.flatnonzero(labels == name)
        different = np.unique(content[members])
        number = min(max(1, round(share * len(different))), len(different) - 1)
        rng = np.random.default_rng([seed, zlib.crc32(name.encode())])
        held[members] = np.isin(content[members], rng.permutation(different)[:number])
    held &= ~np.isin(content, content[~held])
    return samples.select(np.flatnonzero(~held)), samples.select(np.flatnonzero(held))


def _even_sizes(classes: int, tasks: int) -> list[int]:
    if not 1 <= tasks <= classes:
        raise InputError(f"{classes} classes cannot make {tasks} tasks; give a number from 1 to {classes}")
    small, larger = divmod(classes, tasks)
    return [small + 1] * larger + [small] * (tasks - larger)


def _by_size(classes: Sequence[str], sizes: Sequence[int]) -> list[list[str]]:
    if min(sizes) < 1:
        raise InputError(f"a task of {min(sizes)} classes is not possible; every task needs at least one class")
    if sum(sizes) != len(classes):
        raise InputError(f"the task sizes sum to {sum(sizes)} but there are {len(classes)} classes; make them equal")
    ends = np.cumsum(sizes)
    return [list(classes[end - size : end]) for end, size in zip(ends, sizes, strict=True)]


def _by_name(classes: Sequence[str], tasks: list[list[str]]) -> list[list[str]]:
    seen: set[str] = set()
    for number, task in enumerate(tasks, start=1):
        if not task:
            raise InputError(f"task {number} has no classes; give it one or remove it")
        for name in task:
            if name not in classes:
                raise InputError(f"task {number} has an unknown class '{name}'{did_you_mean(name, classes)}")
            if name in seen:
                raise InputError(f"class '{name}' comes twice in the tasks; name it once")
            seen.add(name)
    left = [name for name in classes if name not in seen]
    if left:
        raise InputError(f"no task has class '{left[0]}' ({len(left)} missing in all); put every class into a task")
    return tasks
