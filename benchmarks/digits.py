"""The README's table and plot: CAPrompt against plain fine-tuning of the same prompts, digits in five tasks.

    python benchmarks/digits.py                  # seeds 0, 1, 2; writes results/accuracy/digits.json and docs/digits.png

Protocol: 10 classes in 5 tasks of 2, class order shuffled by the seed; test images (every fifth of a class) are read after each
task only; predictions do not depend on the batch; no task identity at test. Settings were selected on validation images only.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from datetime import date
from pathlib import Path
from typing import Any

import torch

from caprompt.experiments.config import RunConfig
from caprompt.experiments.execution import run_experiment
from caprompt.experiments.plots import plot_accuracy_curve
from caprompt.experiments.provenance import find_commit
from caprompt.experiments.run_folder import RunResult, describe_environment, read_plan
from caprompt.metrics import mean_std
from caprompt.protocols import require_same_protocol

ROOT = Path(__file__).resolve().parents[1]
ROWS: dict[str, tuple[str, dict[str, Any]]] = {
    "CAPrompt": ("caprompt", {}),
    "plain fine-tuning, all classes": ("sequential-prompt", {}),
    "plain fine-tuning, masked": ("sequential-prompt", {"masked": True}),
}


def measure(method: str, options: dict[str, Any], seed: int) -> tuple[RunResult, float, dict[str, str]]:
    """Run once in a temporary folder; return the result, its wall time in seconds, and the digests of the data."""
    start = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        result = run_experiment(RunConfig(method=method, seed=seed, options=options), Path(folder) / "run")
        seconds, plan = time.perf_counter() - start, read_plan(result.folder)
    return result, seconds, {part: plan[part]["sha256"] for part in ("train", "test")}


def format_table(table: dict[str, list[dict[str, float]]]) -> str:
    """Return the README's table: mean and standard deviation over seeds."""
    lines = ["| method | ACC | AF | task identified | seconds a run |", "|---|--:|--:|--:|--:|"]
    for name, seeds in table.items():
        columns = [[metrics[key] for metrics in seeds] for key in ("ACC", "AF", "task_identification", "seconds")]
        lines.append(f"| {' | '.join([name, *(mean_std(column).text(1) for column in columns)])} |")
    return "\n".join(lines)


def main() -> None:
    """Measure, write, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--json", type=Path, default=ROOT / "results" / "accuracy" / "digits.json")
    parser.add_argument("--plot", type=Path, default=ROOT / "docs" / "digits.png")
    args = parser.parse_args()

    matrices, table, protocols = {}, {}, []
    for name, (method, options) in ROWS.items():
        runs = [measure(method, options, seed) for seed in range(args.seeds)]
        protocols += [result.protocol for result, _, _ in runs]
        matrices[name] = [result.matrix for result, _, _ in runs]
        metrics = [{**result.summary(), "seconds": seconds} for result, seconds, _ in runs]
        table[name] = [{key: round(value, 2) for key, value in each.items()} for each in metrics]
    plot_accuracy_curve(matrices, args.plot, title=f"digits, 5 tasks of 2 classes, mean and range of {args.seeds} seeds")
    document = {
        "commit": find_commit(),
        "date": date.today().isoformat(),
        "environment": describe_environment(torch.device("cpu")),
        "data_sha256": runs[0][2],
        "protocol": require_same_protocol(protocols),
        "data": "scikit-learn digits, 10 classes in 5 tasks",
        "backbone": RunConfig().backbone,
        "seeds": list(range(args.seeds)),
        "rows": table,
    }
    args.json.parent.mkdir(parents=True, exist_ok=True)
    args.json.write_text(json.dumps(document, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")

    print(format_table(table))


if __name__ == "__main__":
    main()
