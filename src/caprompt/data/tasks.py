"""Class order, splits of classes into tasks, and stratified hold-out of images."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from typing import Literal, TypeAlias

import numpy as np

from caprompt.data.class_names import natural_key, normalize_class_name
from caprompt.data.duplicates import assign_content_ids
from caprompt.data.samples import Samples
from caprompt.errors import InputError, did_you_mean

__all__ = ["ClassOrder", "Tasks", "hold_out", "order_classes", "split_tasks"]

ClassOrder: TypeAlias = Literal["natural", "shuffled"]
Tasks: TypeAlias = int | Sequence[int] | Sequence[Sequence[str]]


def order_classes(classes: Sequence[str], order: ClassOrder, seed: int) -> list[str]:
    """Return the classes in natural order, or shuffled by `seed`; their given order has no effect.

    >>> order_classes(["b", "a10", "a2"], "natural", seed=0)
    ['a2', 'a10', 'b']
    """
    names = sorted(set(classes), key=natural_key)
    if order == "natural":
        return names
    if order == "shuffled":
        return [names[i] for i in np.random.default_rng(seed).permutation(len(names))]
    raise InputError(f"unknown class order '{order}'; use 'natural' or 'shuffled'")


def split_tasks(classes: Sequence[str], tasks: Tasks) -> list[list[str]]:
    """Split classes by the number of tasks, the task sizes, or the class names of each task.

    >>> split_tasks(["a", "b", "c", "d", "e"], 2)
    [['a', 'b', 'c'], ['d', 'e']]
    >>> split_tasks(["a", "b", "c"], [1, 2])
    [['a'], ['b', 'c']]
    >>> split_tasks(["a", "b", "c"], [["c", "a"], ["b"]])
    [['c', 'a'], ['b']]
    """
    if isinstance(tasks, (int, np.integer)):
        return _split_by_size(classes, _make_even_sizes(len(classes), int(tasks)))
    sizes = [task for task in tasks if isinstance(task, (int, np.integer))]
    named = [task for task in tasks if not isinstance(task, (int, np.integer, str))]
    if 0 < len(sizes) == len(tasks):
        return _split_by_size(classes, sizes)
    if 0 < len(named) == len(tasks):
        return _check_names(classes, [[normalize_class_name(str(name)) for name in task] for task in named])
    raise InputError(f"cannot split classes into tasks by {tasks!r}; give a number, a list of sizes or lists of names")


def hold_out(samples: Samples, share: float, seed: int) -> tuple[Samples, Samples]:
    """Split into training and held-out samples.

    About `share` of every class's distinct images is held out. Of each class at least one image is
    held out and at least one stays (so of a class of one image none is held out). Which images of a
    class are held out does not depend on the other classes. Duplicates stay together; an image that
    occurs with several labels stays in training. Both parts are in the order of `samples`.
    """
    if not 0 <= share < 1:
        raise InputError(f"the share of images to hold out is {share}; it must be at least 0 and less than 1")
    if share == 0:
        return samples.select(range(len(samples))), samples.select([])
    labels, content = np.array(samples.labels), np.array(assign_content_ids(samples.images))
    held_out = np.zeros(len(samples), dtype=bool)
    for name in samples.classes:
        members = np.flatnonzero(labels == name)
        distinct = np.unique(content[members])
        count = min(max(1, round(share * len(distinct))), len(distinct) - 1)
        rng = np.random.default_rng([seed, zlib.crc32(name.encode())])
        held_out[members] = np.isin(content[members], rng.permutation(distinct)[:count])
    held_out &= ~np.isin(content, content[~held_out])
    return samples.select(np.flatnonzero(~held_out)), samples.select(np.flatnonzero(held_out))


def _make_even_sizes(num_classes: int, num_tasks: int) -> list[int]:
    if not 1 <= num_tasks <= num_classes:
        raise InputError(f"cannot split {num_classes} classes into {num_tasks} tasks; give a number from 1 to {num_classes}")
    size, num_larger = divmod(num_classes, num_tasks)
    return [size + 1] * num_larger + [size] * (num_tasks - num_larger)


def _split_by_size(classes: Sequence[str], sizes: Sequence[int]) -> list[list[str]]:
    if min(sizes) < 1:
        raise InputError(f"a task of {min(sizes)} classes is not possible; every task needs at least one class")
    if sum(sizes) != len(classes):
        raise InputError(f"the task sizes sum to {sum(sizes)} but there are {len(classes)} classes; make them equal")
    ends = np.cumsum(sizes)
    return [list(classes[end - size : end]) for end, size in zip(ends, sizes, strict=True)]


def _check_names(classes: Sequence[str], tasks: list[list[str]]) -> list[list[str]]:
    """Return the tasks if each class is in exactly one of them."""
    seen: set[str] = set()
    for number, task in enumerate(tasks, start=1):
        if not task:
            raise InputError(f"task {number} has no classes; give it one or remove it")
        for name in task:
            if name not in classes:
                raise InputError(f"task {number} has an unknown class '{name}'{did_you_mean(name, classes)}")
            if name in seen:
                raise InputError(f"class '{name}' occurs twice in the tasks; name it once")
            seen.add(name)
    missing = [name for name in classes if name not in seen]
    if missing:
        raise InputError(f"class '{missing[0]}' is in no task ({len(missing)} missing in total); put every class into a task")
    return tasks
