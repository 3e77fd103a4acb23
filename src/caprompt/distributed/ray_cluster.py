"""Connections to Ray clusters: one that runs, or a local one that is started for a call."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from math import ceil
from typing import Any

from caprompt.errors import CapromptWarning, InputError, first_line
from caprompt.utils.cores import count_cores

__all__ = ["LOCAL", "check_resources", "choose_gpus", "connect", "count_slots", "count_threads", "import_ray", "parse_address"]

LOCAL, AUTO = "local", "auto"
TIMEOUT = 10.0  # seconds for a connection to the cluster's port
HEALTH_TIMEOUT = 30.0  # seconds for the cluster to say that it is well; most of it is the start of a process
FORWARDED = (
    "CAPROMPT_",
    "HF_HOME",
    "HF_HUB_OFFLINE",
)  # beginnings of variables that workers need; no credentials, which Ray would show


def import_ray() -> Any:
    """Return the package ray, or say how to get it."""
    try:
        import ray
    except ImportError:
        raise InputError("a cluster needs the package ray: pip install 'caprompt[cluster]'") from None
    return ray


def parse_address(address: str) -> tuple[str, int] | None:
    """Return host and port of a cluster, or None for one that has no address of its own.

    >>> parse_address("ray://head.lab:10001"), parse_address("10.0.0.5:6379"), parse_address("local")
    (('head.lab', 10001), ('10.0.0.5', 6379), None)
    >>> parse_address("ray:/head")
    Traceback (most recent call last):
    caprompt.errors.InputError: 'ray:/head' is no cluster; give ray://HOST:10001, HOST:6379, auto, local or slurm
    """
    if address in (LOCAL, AUTO):
        return None
    match = re.fullmatch(r"(?:ray://)?([\w.-]+|\[[0-9a-fA-F:]+\]):(\d{1,5})", address)
    if match is None:
        raise InputError(f"'{address}' is no cluster; give ray://HOST:10001, HOST:6379, auto, local or slurm")
    return match[1].strip("[]"), int(match[2])


@contextmanager
def connect(address: str) -> Iterator[Any]:
    """Connect to a cluster for the duration of a block, and return the package ray; a program's own connection is used as it is."""
    host = parse_address(address)
    ray = import_ray()
    if ray.is_initialized():
        yield ray
        return
    if host is not None:
        _check_answers(address, *host)
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    variables = {name: value for name, value in os.environ.items() if name.startswith(FORWARDED)}
    options: dict[str, Any] = {"runtime_env": {"env_vars": variables}} if variables else {}
    if address == LOCAL:
        options |= {"num_cpus": count_cores(), "include_dashboard": False}
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            ray.init(address=address, log_to_driver=False, logging_level="ERROR", **options)
    except (ConnectionError, RuntimeError, TimeoutError, ValueError) as error:
        raise InputError(f"the Ray cluster '{address}' cannot be used: {first_line(error)}") from error
    try:
        yield ray
    finally:
        ray.shutdown()


def _check_answers(address: str, host: str, port: int) -> None:
    """Raise if nobody listens there: Ray itself would wait for minutes."""
    try:
        socket.create_connection((host, port), timeout=TIMEOUT).close()
    except (OSError, OverflowError) as error:
        reason = getattr(error, "strerror", None) or error
        raise InputError(
            f"no Ray cluster answers at '{address}' ({reason}); check the address, and that the cluster runs"
        ) from error
    if not address.startswith("ray://") and not _is_healthy(address):
        raise InputError(f"what answers at '{address}' is no Ray cluster; check the address")


def _is_healthy(address: str) -> bool:
    """Return whether a Ray cluster answers: something else that listens there would keep Ray waiting for ever."""
    words = [sys.executable, "-m", "ray.scripts.scripts", "health-check", "--address", address]
    try:
        return subprocess.run(words, capture_output=True, timeout=HEALTH_TIMEOUT, check=False).returncode == 0
    except subprocess.TimeoutExpired:
        return False


def choose_gpus(ray: Any, gpus: float | None) -> float:
    """Return the GPUs of a worker: those asked for, or one where the cluster has any."""
    return gpus if gpus is not None else float(bool(ray.cluster_resources().get("GPU")))


def count_slots(ray: Any, cpus: float, gpus: float) -> int:
    """Return how many workers that need so much each fit on the cluster as it is now."""
    return sum(_count_on(node["Resources"], cpus, gpus) for node in ray.nodes() if node["Alive"])


def count_threads(cpus: float) -> int:
    """Return how many threads a worker with so many cores uses.

    >>> count_threads(0.5), count_threads(2)
    (1, 2)
    """
    return max(1, ceil(cpus))


def _count_on(resources: dict[str, float], cpus: float, gpus: float) -> int:
    """Return how many workers fit on a node.

    >>> _count_on({"CPU": 8.0, "GPU": 1.0}, 1, 0.25), _count_on({"CPU": 8.0}, 2, 0), _count_on({"CPU": 8.0}, 1, 1)
    (4, 4, 0)
    """
    fits = [int(resources.get(kind, 0.0) / need + 1e-9) for kind, need in (("CPU", cpus), ("GPU", gpus)) if need]
    return min(fits, default=1)


def check_resources(ray: Any, cpus: float, gpus: float) -> None:
    """Warn if no node is large enough: a cluster that scales itself may still get one."""
    if not count_slots(ray, cpus, gpus):
        message = f"no node of the cluster has {cpus:g} CPU(s) and {gpus:g} GPU(s) for a worker; waiting for one that has"
        warnings.warn(message, CapromptWarning, stacklevel=2)
