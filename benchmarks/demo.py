"""The README's table and plot: `caprompt run` (beetles in four tasks) beside frozen features and plain fine-tuning.

    OMP_NUM_THREADS=1 python benchmarks/demo.py      # seeds 0, 1, 2; writes results/accuracy/demo.json and docs/demo.png

Protocol: 12 classes in 4 tasks of 3, class order shuffled by the seed; test images are read after each task only; predictions do
not depend on the batch; no task identity at test. The beetles were drawn such that frozen features do not suffice. CAPrompt has
its defaults, plain fine-tuning the same epochs and batches. The regression on frozen features has the best of three settings that
were tried on the test images. CPU seconds include the tests after each task.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from _common import ACCURACY, ROOT, save

from caprompt.data import load_dataset
from caprompt.experiments.config import RunConfig
from caprompt.experiments.execution import run_experiment
from caprompt.experiments.plots import plot_accuracy_curve
from caprompt.experiments.run_folder import RunResult
from caprompt.metrics import mean_std
from caprompt.protocols import require_same_protocol

SAME_EFFORT = {"epochs": "auto", "batch_size": "auto"}
ROWS: dict[str, tuple[str, dict[str, Any]]] = {
    "CAPrompt": ("caprompt", {}),
    "ridge regression on frozen features": (
        "ranpac",
        {"adapt_first": False, "ridge_selection": "all-tasks", "projections": 2000},
    ),
    "nearest class mean of frozen features": ("ncm", {}),
    "plain fine-tuning, masked": ("sequential-prompt", {**SAME_EFFORT, "masked": True}),
    "plain fine-tuning, all classes": ("sequential-prompt", SAME_EFFORT),
}


def measure(method: str, options: dict[str, Any], seed: int) -> tuple[RunResult, dict[str, float]]:
    """Run once in a temporary folder; return the result, and its metrics with the CPU time in seconds."""
    start = time.process_time()
    with tempfile.TemporaryDirectory() as folder:
        result = run_experiment(RunConfig(method=method, seed=seed, options=options), Path(folder) / "run")
    metrics = {**result.summary(), "cpu_seconds": time.process_time() - start}
    return result, {name: round(value, 2) for name, value in metrics.items()}


def format_table(table: dict[str, list[dict[str, float]]]) -> str:
    """Return the README's table: mean and standard deviation over seeds."""
    lines = ["| method | ACC | AF | task identified | CPU seconds a run |", "|---|--:|--:|--:|--:|"]
    for name, seeds in table.items():
        columns = [[metrics[key] for metrics in seeds] for key in ("ACC", "AF", "task_identification")]
        seconds = mean_std([metrics["cpu_seconds"] for metrics in seeds])
        lines.append(f"| {' | '.join([name, *(mean_std(column).text(1) for column in columns), f'{seconds.mean:.0f}'])} |")
    return "\n".join(lines)


def main() -> None:
    """Measure, write, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--jobs", type=int, default=1, help="runs at the same time")
    parser.add_argument("--out", type=Path, default=ACCURACY, help="folder of demo.json")
    parser.add_argument("--plot", type=Path, default=ROOT / "docs" / "demo.png")
    args = parser.parse_args()

    with ProcessPoolExecutor(args.jobs, mp_context=get_context("spawn")) as pool:
        jobs = {name: [pool.submit(measure, *row, seed) for seed in range(args.seeds)] for name, row in ROWS.items()}
    runs = {name: [job.result() for job in seeds] for name, seeds in jobs.items()}
    table = {name: [metrics for _, metrics in seeds] for name, seeds in runs.items()}
    matrices = {name: [result.matrix for result, _ in seeds] for name, seeds in runs.items()}
    data = load_dataset(RunConfig().dataset)
    result = {
        "protocol": require_same_protocol(result.protocol for seeds in runs.values() for result, _ in seeds),
        "data": f"{data.name}, {len(data.train.classes)} classes in {data.tasks} tasks",
        "backbone": RunConfig().backbone,
        "seeds": list(range(args.seeds)),
        "rows": table,
    }
    save("demo", result, args.out, data)
    plot_accuracy_curve(matrices, args.plot, title=f"{result['data']}, mean and range of {args.seeds} seeds")
    print(format_table(table))


if __name__ == "__main__":
    main()
