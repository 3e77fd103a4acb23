"""The cluster that a user names, as the executor of a grid."""

from __future__ import annotations

from caprompt.distributed.jobs import Executor
from caprompt.distributed.ray_cluster import import_ray, parse_address
from caprompt.distributed.ray_grid import RayExecutor
from caprompt.distributed.slurm import SLURM, SlurmExecutor, parse_slurm
from caprompt.errors import OptionError

__all__ = ["check_shares", "is_slurm", "make_executor"]


def is_slurm(cluster: str) -> bool:
    """Return whether a cluster is one of Slurm.

    >>> is_slurm("slurm:partition=gpu"), is_slurm("ray://slurm:10001")
    (True, False)
    """
    return cluster.partition(":")[0] == SLURM


def make_executor(cluster: str, cpus: float = 1, gpus: float | None = None, limit: int | None = None) -> Executor:
    """Return the executor for a cluster: `slurm`, `slurm:name=value,...`, or the address of a Ray cluster.

    `cpus` and `gpus` are what each job gets; by default a GPU where a Ray cluster has any. At most `limit` run at once.
    """
    check_shares(cpus, gpus)
    if limit is not None and limit < 1:
        raise OptionError(f"option 'jobs' must be at least 1, not {limit}")
    if is_slurm(cluster):
        return SlurmExecutor(cpus, gpus or 0, limit, parse_slurm(cluster))
    parse_address(cluster)
    import_ray()  # says how to get it, before anything is written
    return RayExecutor(cluster, cpus, gpus, limit)


def check_shares(cpus: float, gpus: float | None) -> None:
    """Raise if a worker cannot have so many CPUs and GPUs."""
    if not 0 < cpus < float("inf"):
        raise OptionError(f"option 'cpus' must be above 0, not {cpus:g}")
    if gpus is not None and not (0 <= gpus <= 1 or gpus == int(gpus)):
        raise OptionError(f"option 'gpus' must be a share of one GPU, such as 0.25, or a whole number of them, not {gpus:g}")
