"""`caprompt predict --out FILE`: predictions for any number of images into a file, here or on a cluster."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from caprompt.cli.console import err, out, print_skipped, print_warnings
from caprompt.errors import OptionError, StoppedError

if TYPE_CHECKING:
    from caprompt.distributed.bulk_prediction import ModelSpec, Runner

__all__ = ["make_runner", "predict_in_bulk"]


def make_runner(cluster: str | None, cpus: float, gpus: float | None, jobs: int | None, device: str) -> Runner | None:
    """Return what predicts on a cluster, or None for this process."""
    if cluster is None:
        if gpus is not None or cpus != 1 or jobs is not None:
            raise OptionError("--cpus, --gpus and --jobs are for the workers of a cluster; name it with --cluster")
        return None
    from caprompt.distributed.clusters import check_shares, is_slurm
    from caprompt.distributed.ray_cluster import import_ray, parse_address
    from caprompt.distributed.ray_prediction import RayRunner

    check_shares(cpus, gpus)
    if jobs is not None and jobs < 1:
        raise OptionError(f"option 'jobs' must be at least 1, not {jobs}")
    if is_slurm(cluster):
        raise OptionError(
            "bulk prediction runs on Ray; start a Ray cluster within Slurm, and name it with --cluster ray://HOST:10001"
        )
    parse_address(cluster)
    import_ray()
    return RayRunner(cluster, cpus, 0 if device == "cpu" and gpus is None else gpus, jobs)


def predict_in_bulk(spec: ModelSpec, names: Sequence[Path | str], output: Path, runner: Runner | None) -> None:
    """Predict images into a file, with a progress bar; print what could not be read."""
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn

    from caprompt.callbacks.progress_bar import QuietProgress
    from caprompt.distributed.bulk_prediction import ShardResult, predict_to_file

    columns = (
        TextColumn("images"),
        BarColumn(bar_width=24),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    with QuietProgress(*columns, console=err, disable=not err.is_terminal, transient=True) as bars:
        bar = bars.add_task("images", total=len(names))

        def advance(shard: ShardResult) -> None:
            bars.advance(bar, shard.images)

        try:
            result = predict_to_file(spec, names, output, runner=runner, on_shard=advance)
        except KeyboardInterrupt:
            raise StoppedError("Stopped; the same command continues where it stopped.") from None
    print_skipped(result.examples)
    if result.unreadable > len(result.examples):
        print_skipped([f"{result.unreadable - len(result.examples)} more; the column 'error' of '{output}' has all of them"])
    print_warnings(result.warnings)
    out.print(f"{result.images - result.unreadable:,} of {result.images:,} images in {output}", soft_wrap=True)
