"""The README's table and plot: `caprompt run` (beetles in four tasks) beside RanPAC, frozen features and plain fine-tuning.

    OMP_NUM_THREADS=1 python benchmarks/demo.py      # seeds 0, 1, 2; writes results/accuracy/demo.json and docs/demo.png

Protocol: 12 classes in 4 tasks of 3, class order shuffled by the seed; test images are read after each task only; predictions do
not depend on the batch; no task identity at test. The beetles were drawn such that frozen features do not suffice. CAPrompt has
its defaults but for what the data set sets (1,000 projections, larger crops), plain fine-tuning the same epochs and batches, RanPAC
20 epochs of its first task. The regression on frozen features has the best of three settings that were tried on the test images.
Joint training, of all classes at once, is no class-incremental method, but an upper reference. CPU seconds include the tests after
each task.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from _common import ACCURACY, ROOT, save
from compare import RANPAC

from caprompt.data import load_dataset
from caprompt.experiments.config import RunConfig
from caprompt.experiments.execution import run_experiment
from caprompt.experiments.plots import plot_accuracy_curve
from caprompt.experiments.run_folder import RunResult
from caprompt.metrics import mean_std
from caprompt.protocols import require_same_protocol

SAME_EFFORT = {"epochs": "auto", "batch_size": "auto"}
JOINT = "CAPrompt, all classes at once"
ROWS: dict[str, tuple[str, dict[str, Any]]] = {
    "CAPrompt": ("caprompt", {}),
    "RanPAC, 20 epochs": ("ranpac", {**RANPAC, "projections": 2000}),
    "ridge regression on frozen features": (
        "ranpac",
        {"adapt_first": False, "ridge_selection": "all-tasks", "projections": 2000},
    ),
    "nearest class mean of frozen features": ("ncm", {}),
    "plain fine-tuning, masked": ("sequential-prompt", {**SAME_EFFORT, "masked": True}),
    "plain fine-tuning, all classes": ("sequential-prompt", SAME_EFFORT),
    JOINT: ("caprompt", {}),
}


def measure(method: str, options: dict[str, Any], seed: int, joint: bool) -> tuple[RunResult, dict[str, float]]:
    """Run once in a temporary folder; return the result, and its metrics with passes, kept megabytes and CPU seconds."""
    start = time.process_time()
    with tempfile.TemporaryDirectory() as folder:
        config = RunConfig(method=method, seed=seed, options=options, joint=joint)
        result = run_experiment(config, Path(folder) / "run")
        kept = json.loads((Path(folder) / "run" / "cost.json").read_text(encoding="utf-8"))["kept_bytes"]
    costs = {"passes": result.rows[-1].mean_passes, "megabytes": kept / 1e6, "cpu_seconds": time.process_time() - start}
    return result, {name: round(value, 2) for name, value in {**result.summary(), **costs}.items()}


def format_table(table: dict[str, list[dict[str, float]]]) -> str:
    """Return the README's table: mean and standard deviation over seeds."""
    lines = ["| method | ACC | AF | task identified | passes | MB | CPU seconds |", f"|---|{'--:|' * 6}"]
    for name, seeds in table.items():
        columns = {key: mean_std([metrics[key] for metrics in seeds]) for key in seeds[0]}
        of_tasks = [columns[key].text(1) if name != JOINT else "" for key in ("AF", "task_identification")]
        costs = [f"{columns[key].mean:.{digits}f}" for key, digits in (("passes", 0), ("megabytes", 1), ("cpu_seconds", 0))]
        lines.append(f"| {' | '.join([name, columns['ACC'].text(1), *of_tasks, *costs])} |")
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
        jobs = {name: [pool.submit(measure, *row, seed, name == JOINT) for seed in range(args.seeds)] for name, row in ROWS.items()}
    runs = {name: [job.result() for job in seeds] for name, seeds in jobs.items()}
    table = {name: [metrics for _, metrics in seeds] for name, seeds in runs.items()}
    matrices = {name: [result.matrix for result, _ in seeds] for name, seeds in runs.items() if name != JOINT}
    data = load_dataset(RunConfig().dataset)
    result = {
        "protocol": require_same_protocol(result.protocol for name in matrices for result, _ in runs[name]),
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
