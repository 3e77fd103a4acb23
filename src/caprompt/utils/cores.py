"""How many cores this process may use, which may be fewer than the machine has.

Libraries count the cores that a process is bound to, if not those of the machine. Where a container or a service has a quota of
CPU time (`docker run --cpus 2`, `CPUQuota=` of systemd), a thread for each of these uses it up in a part of every period, and then
all of them wait for the next one. This module is imported before PyTorch, so it imports little.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from functools import cache
from pathlib import Path, PurePosixPath

__all__ = ["count_bound_cores", "count_cores", "read_quota"]

MEMBERSHIP = Path("/proc/self/cgroup")  # a line "number:controllers:path" for each hierarchy of control groups, see cgroups(7)
GROUPS = Path("/sys/fs/cgroup")
QUOTA_FILES = (
    "cpu.max",
    "cpu.cfs_quota_us",
    "cpu.cfs_period_us",
)  # the first has both words of version 2, the others are version 1's
UNLIMITED = ("max", "-1")


def count_cores() -> int:
    """Return how many cores this process may use: those it is bound to, but no more than its quota of CPU time is worth."""
    quota, bound = read_quota(), count_bound_cores()
    return bound if quota is None else min(bound, max(1, math.ceil(quota)))


def count_bound_cores() -> int:
    """Return how many cores the process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@cache
def read_quota(membership: Path = MEMBERSHIP, groups: Path = GROUPS) -> float | None:
    """Return how many cores' time the process and others of its control groups may use, None if that is not limited.

    It is read once: each batch of files asks how many threads decode.
    """
    return min(_iterate_quotas(membership, groups), default=None)


def _iterate_quotas(membership: Path, groups: Path) -> Iterator[float]:
    """Yield the quotas of the control groups that the process is in, and of the groups around these."""
    for line in _read_text(membership).splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers and "cpu" not in controllers.split(","):
            continue
        # Version 1 has a folder for each hierarchy; one of several controllers has a link by the name of each.
        hierarchy, group = groups / ("cpu" if controllers else ""), PurePosixPath(path)
        # In a container the path may be that outside of it; then it is not found, and the root is the container's own group.
        for each in (group, *group.parents):
            folder = hierarchy / each.relative_to(each.anchor)
            words = [word for name in QUOTA_FILES for word in _read_text(folder / name).split()]
            if len(words) == 2 and words[0] not in UNLIMITED:
                yield int(words[0]) / int(words[1])


def _read_text(path: Path) -> str:
    """Return the contents of a file of the kernel, empty if there is none, as on other systems than Linux."""
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
