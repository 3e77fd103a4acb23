"""The README's table and picture: CAPrompt against plain fine-tuning of the same prompts, digits in five tasks.

    python benchmarks/digits.py                  # seeds 0, 1, 2; writes benchmarks/results/digits.json and docs/digits.png

Protocol: 10 classes in 5 tasks of 2, class order shuffled by the seed; test images (every fifth of a class) are read after each
task only; an image's answer is its own; no task identity at test. Settings were chosen on validation images only.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from datetime import date
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import torch

from caprompt.experiments.config import RunConfig
from caprompt.experiments.execution import run_experiment
from caprompt.experiments.plots import accuracy_curve
from caprompt.experiments.run_folder import RunResult, environment
from caprompt.protocols import single

HERE = Path(__file__).parent
ROWS: dict[str, tuple[str, dict[str, Any]]] = {
    "CAPrompt": ("caprompt", {}),
    "plain fine-tuning, all classes": ("sequential-prompt", {}),
    "plain fine-tuning, masked": ("sequential-prompt", {"masked": True}),
}


def measure(method: str, options: dict[str, Any], seed: int) -> tuple[RunResult, float]:
    """One run in a folder that is thrown away, and its wall time."""
    began = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        results = run_experiment(RunConfig(method=method, seed=seed, options=options), Path(folder) / "run")
    return results, time.perf_counter() - began


def markdown(table: dict[str, list[dict[str, float]]]) -> str:
    """The README's table: mean and standard deviation over seeds."""
    lines = ["| method | ACC | AF | task identified | seconds a run |", "|---|--:|--:|--:|--:|"]
    for name, figures in table.items():
        columns = [[figure[key] for figure in figures] for key in ("ACC", "AF", "task_identification", "seconds")]
        cells = [f"{fmean(column):.1f} ± {stdev(column) if len(column) > 1 else 0:.1f}" for column in columns]
        lines.append(f"| {' | '.join([name, *cells])} |")
    return "\n".join(lines)


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--json", type=Path, default=HERE / "results" / "digits.json")
    parser.add_argument("--picture", type=Path, default=HERE.parent / "docs" / "digits.png")
    args = parser.parse_args()

    matrices, table, protocols = {}, {}, []
    for name, (method, options) in ROWS.items():
        runs = [measure(method, options, seed) for seed in range(args.seeds)]
        protocols += [results.protocol for results, _ in runs]
        matrices[name] = [results.matrix for results, _ in runs]
        figures = [{**results.summary(), "seconds": seconds} for results, seconds in runs]
        table[name] = [{key: round(value, 2) for key, value in figure.items()} for figure in figures]
    accuracy_curve(matrices, args.picture, title=f"digits, 5 tasks of 2 classes, mean and range of {args.seeds} seeds")
    document = {
        "date": date.today().isoformat(),
        "protocol": single(protocols),
        "data": "scikit-learn digits, 10 classes in 5 tasks",
        "backbone": RunConfig().backbone,
        "environment": environment(torch.device("cpu")),
        "seeds": list(range(args.seeds)),
        "rows": table,
    }
    args.json.parent.mkdir(parents=True, exist_ok=True)
    args.json.write_text(json.dumps(document, indent=2) + "\n")

    print(markdown(table))


if __name__ == "__main__":
    main()
