"""A grid on a Ray cluster of three nodes on this machine, in the middle of which a node and the driver are killed."""

from __future__ import annotations

import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from helpers import PRINTING_PROGRESS, QUICK, write_squares

pytest.importorskip("ray", reason="the package ray is not installed (the extra caprompt[cluster])")

SCRIPT = (
    PRINTING_PROGRESS
    + """
import os, sys
from pathlib import Path
from caprompt.distributed.ray_grid import RayExecutor
from caprompt.experiments.config import RunConfig, resolve_config
from caprompt.experiments.grid import Cell, run_grid

data, backbone, cells_dir, address = sys.argv[1:]
log = Path(cells_dir + ".log").absolute()

def log_end(model, images):
    with log.open("a") as file:
        file.write(f"{type(model.method).__name__} {model.seed}\\n")
    return {"images": len(images)}

common = dict(dataset=data, backbone=backbone, tasks=2)
cells = [
    Cell(resolve_config(RunConfig(**common, method=method, seed=seed, options=options)), (log_end,))
    for method, options in (("caprompt", {options}), ("linear", {"epochs": 40, "batch_size": 4}))
    for seed in range(6)
]
executor = None if address == "none" else RayExecutor(address, heartbeat=0.5, expiry=10)
run_grid(cells, Path(cells_dir), device="cpu", progress=PrintingProgress(), executor=executor)
""".replace("{options}", repr({**QUICK, "epochs": 10, "crops": False}))
)

# In JSON files. The hashes are those of metrics.jsonl, which has durations, and of a whole configuration, at its end.
MEASURED = re.compile(rb'"((test_)?seconds|peak_memory_bytes|date|metrics\.jsonl)": [^,}\n]+|"sha256": "\w+"\n}\n$')


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """Return a cluster of three nodes with a CPU each."""
    from ray.cluster_utils import Cluster

    store = {"object_store_memory": 80_000_000}
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False, **store})
    for _ in range(2):
        cluster.add_node(num_cpus=1, **store)
    yield cluster
    cluster.shutdown()


class Driver:
    """A process that runs the grid of the script."""

    def __init__(self, folder: Path, backbone: Path, cells_dir: str, address: str) -> None:
        words = [sys.executable, "grid.py", "data", str(backbone), cells_dir, address]
        self.process = subprocess.Popen(words, cwd=folder, stdout=subprocess.PIPE, text=True)
        self.lines: list[str] = []

    def wait_for(self, ended: int) -> None:
        """Wait until so many cells have ended."""
        assert self.process.stdout is not None
        while sum(line.startswith("ended") for line in self.lines) < ended and (line := self.process.stdout.readline()):
            self.lines.append(line)
        assert self.process.poll() is None

    def finish(self) -> None:
        """Read what is left, to the end of the process."""
        self.lines += self.process.communicate(timeout=120)[0].splitlines()

    def list_cells(self, verb: str) -> list[str]:
        """List the cells that have started or ended."""
        return [line.split()[1] for line in self.lines if line.startswith(verb)]


@pytest.mark.slow
def test_killed_node_and_killed_driver(cluster: Any, tmp_path: Path, backbone: Path) -> None:
    write_squares(tmp_path / "data", ["red", "green", "blue", "yellow"])
    (tmp_path / "grid.py").write_text(SCRIPT)
    first = Driver(tmp_path, backbone, "ray", cluster.address)
    first.wait_for(3)
    cluster.remove_node(next(iter(cluster.worker_nodes)), allow_graceful=False)
    first.wait_for(6)
    first.process.kill()
    first.finish()
    second = Driver(tmp_path, backbone, "ray", cluster.address)
    second.wait_for(1)
    refused = subprocess.run(
        [sys.executable, "grid.py", "data", str(backbone), "ray", cluster.address], cwd=tmp_path, capture_output=True, text=True
    )
    second.finish()
    assert "InputError: 'ray' is being written by another call (process" in refused.stderr
    assert second.process.returncode == 0

    assert not set(first.list_cells("ended")) & set(second.list_cells("started")), "a finished cell was run again"
    assert all(line.split()[-1] == "None" for line in [*first.lines, *second.lines] if line.startswith("ended"))
    counts = Counter((tmp_path / "ray.log").read_text().splitlines())
    assert len(counts) == 12
    assert set(counts.values()) == {1}, "a cell was finished twice"

    alone = Driver(tmp_path, backbone, "alone", "none")
    alone.finish()
    names = sorted(path.name for path in (tmp_path / "alone").iterdir())
    assert len(names) == 12
    assert sorted(path.name for path in (tmp_path / "ray").iterdir()) == names  # and no lease is left
    for name in names:
        assert_same_cell(tmp_path / "alone" / name, tmp_path / "ray" / name)


def assert_same_cell(one: Path, other: Path) -> None:
    """Check that all files of two cells are equal byte by byte, apart from dates, durations and memory, and hashes of these."""
    paths = sorted(path.relative_to(one) for path in one.rglob("*") if path.is_file())
    assert paths == sorted(path.relative_to(other) for path in other.rglob("*") if path.is_file())
    for path in paths:
        contents = [MEASURED.sub(b"", (folder / path).read_bytes()) for folder in (one, other)]
        assert contents[0] == contents[1], path
