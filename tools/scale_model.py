"""How learning scales to many workers and classes: formulas with measured constants, and the tables of docs/scale.md.

    python tools/scale_model.py        # after benchmarks/scale_costs.py; without new results nothing changes

A model of sums (methods `ridge` and `ranpac`) is taught by W workers, each with its share of the images: forward passes, sums over
images, an addition of the sums between the workers, and a solution of the regression. docs/scale.md has the formulas. Their
constants are fitted to the steps in results/speed/scale.json; whole runs there, which are not used for that, check the result.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from scipy.optimize import nnls

ROOT = Path(__file__).resolve().parents[1]
RESULT, PAGE = ROOT / "results" / "speed" / "scale.json", ROOT / "docs" / "scale.md"

WIDTH = 768  # of the features of a ViT-B
DOUBLE, SINGLE = 8, 4  # bytes of a number
IMAGES_PER_CLASS = 100
PROJECTIONS = 10_000
WORKERS = (1, 10, 100, 1_000)
CLASSES = (10_000, 100_000, 1_000_000)
NETWORK = 10e9  # bytes per second between machines that is assumed beside the measured one of processes on one machine


@dataclass(frozen=True)
class Costs:
    """Constants of a device: seconds of a forward pass, rates in operations per second, and of the addition between workers."""

    forward: float
    gram: float
    class_sums: float
    factor: float
    weights: float
    scores: float
    bandwidth: float
    latency: float


@dataclass(frozen=True)
class Setting:
    """What is taught, and how: with `divided`, each worker has the sums and weights of its share of the classes only."""

    workers: int
    classes: int
    images: int
    projections: int = PROJECTIONS
    divided: bool = False


def fit_costs(device: dict[str, Any], network: float | None = None) -> Costs:
    """Fit the constants to measured steps; `network` replaces the measured bandwidth between processes."""
    sums = [
        (count_gram(row["projections"]), 2 * row["classes"] * row["projections"], row["seconds_per_image"])
        for row in device["sums"]
    ]
    solve = [(*count_solve(row["projections"], row["classes"]), row["seconds"]) for row in device["solve"]]
    head = [(2 * row["projections"] * row["classes"], row["seconds_per_image"]) for row in device["head"]]
    moved = [(1.0, count_moved(row["megabytes"] * 1e6, row["workers"]), row["seconds"]) for row in device["addition"]]
    (gram, class_sums), (factor, weights), (scores,) = _fit(sums), _fit(solve), _fit(head)
    latency, per_byte = _fit(moved)
    fitted = {"gram": gram, "class_sums": class_sums, "factor": factor, "weights": weights, "scores": scores}
    rates = {name: 1 / each if each else float("inf") for name, each in fitted.items()}
    forward = device["forward"]["seconds_per_image"]
    return Costs(forward=forward, bandwidth=network or 1 / per_byte, latency=latency, **rates)


def _fit(rows: Sequence[tuple[float, ...]]) -> list[float]:
    """Return non-negative factors of all columns but the last, of which the relative errors of their sum are least."""
    table = np.array(rows, dtype=float)
    scaled = table[:, :-1] / table[:, -1:]
    size = np.linalg.norm(scaled, axis=0)
    return [float(each) for each in nnls(scaled / size, np.ones(len(table)))[0] / size]


def count_gram(projections: int) -> float:
    """Return the operations of projecting an image and adding it to half of the symmetric Gram matrix.

    >>> count_gram(10_000)
    115360000
    """
    return 2 * WIDTH * projections + projections**2


def count_solve(projections: int, classes: int) -> tuple[float, float]:
    """Return the operations of the factorization, and of solving for the weights of all classes.

    >>> count_solve(3_000, 10)
    (9000000000.0, 180000000)
    """
    return projections**3 / 3, 2 * projections**2 * classes


def count_moved(size: float, workers: int) -> float:
    """Return the bytes that each worker sends to add up so many bytes in a ring.

    >>> count_moved(100.0, 1), count_moved(100.0, 2), count_moved(100.0, 4)
    (0.0, 100.0, 150.0)
    """
    return 2 * size * (workers - 1) / workers


def count_gram_bytes(projections: int) -> int:
    """Return the bytes of half of the Gram matrix, which is all that travels.

    >>> count_gram_bytes(10_000)
    400040000
    """
    return DOUBLE * projections * (projections + 1) // 2


def compute_memory(setting: Setting) -> float:
    """Return the bytes of a worker's regression: the Gram matrix and its factor, the projection, sums and weights of its classes.

    >>> round(compute_memory(Setting(1, 10_000, 0)) / 1e9, 1), round(compute_memory(Setting(10, 10_000, 0, divided=True)) / 1e9, 1)
    (3.2, 1.8)
    """
    own = setting.classes / setting.workers if setting.divided else setting.classes
    return 2 * DOUBLE * setting.projections**2 + SINGLE * WIDTH * setting.projections + 2 * DOUBLE * setting.projections * own


def compute_seconds(setting: Setting, costs: Costs) -> dict[str, float]:
    """Return the seconds of each step of teaching."""
    images, own = setting.images / setting.workers, setting.classes / setting.workers if setting.divided else setting.classes
    factor, weights = count_solve(setting.projections, own)  # type: ignore[arg-type]
    gram = count_moved(count_gram_bytes(setting.projections), setting.workers)
    sums = count_moved(DOUBLE * setting.projections * setting.classes, setting.workers)
    if setting.divided:  # each worker gets the sums of its own classes only: half of an addition
        sums /= 2
    # One-hot labels times features; with divided classes, an image is added to the row of its class only.
    per_image = 2 * setting.projections * (1 if setting.divided else setting.classes)
    return {
        "forward": images * costs.forward,
        "sums": images * (count_gram(setting.projections) / costs.gram + per_image / costs.class_sums),
        "network": (gram + sums) / costs.bandwidth + (2 * costs.latency if setting.workers > 1 else 0.0),
        "solution": factor / costs.factor + weights / costs.weights,
    }


# -- the page --------------------------------------------------------------------------------------------------------------------


def format_table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a Markdown table."""
    lines = [heads, ["---", *["--:"] * (len(heads) - 1)], *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def format_seconds(seconds: float) -> str:
    """Return a duration in the unit that suits it.

    >>> [format_seconds(each) for each in (0.0123, 4.0, 200.0, 9000.0, 400_000.0)]
    ['12 ms', '4.0 s', '3.3 min', '2.5 h', '4.6 d']
    """
    for limit, unit, name in ((1, 1e-3, "ms"), (60, 1, "s"), (3600, 60, "min"), (86_400, 3600, "h")):
        if seconds < limit:
            return f"{seconds / unit:.{0 if name == 'ms' else 1}f} {name}"
    return f"{seconds / 86_400:,.1f} d"


def list_devices(result: dict[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    """Return the measured devices, GPUs first."""
    return sorted(result["devices"].items(), key=lambda each: each[0] != "cuda")


def format_constants(result: dict[str, Any]) -> str:
    """Return the constants of each device."""
    devices = [(name, fit_costs(device)) for name, device in list_devices(result)]
    rates = {"gram": "adding to the Gram matrix", "class_sums": "adding to the class sums", "factor": "factorization"}
    rates |= {"weights": "weights from the factor", "scores": "scores of a prediction"}
    rows = [["forward pass of ViT-B/16", *(f"{format_seconds(costs.forward)} an image" for _, costs in devices)]]
    rows += [[name, *(f"{getattr(costs, key) / 1e9:,.1f} GFLOP/s" for _, costs in devices)] for key, name in rates.items()]
    rows += [["addition between processes", *(f"{costs.bandwidth / 1e9:.2f} GB/s" for _, costs in devices)]]
    return format_table(["step", *({"cuda": "GPU", "cpu": "CPU, one thread"}[name] for name, _ in devices)], rows)


def format_check(result: dict[str, Any]) -> str:
    """Return measured whole runs beside what the formulas give."""
    rows = []
    for name, device in list_devices(result):
        costs = fit_costs(device)
        for row in device["teaching"]:
            setting = Setting(row["workers"], row["classes"], row["images"], row["projections"])
            expected = sum(compute_seconds(setting, costs).values())
            numbers = [f"{row[key]:,}" for key in ("workers", "images", "projections", "classes")]
            rows.append(
                [name, *numbers, format_seconds(row["seconds"]), format_seconds(expected), f"{expected / row['seconds']:.2f}"]
            )
    return format_table(["device", "workers", "images", "projections", "classes", "measured", "formula", "ratio"], rows)


def format_simulation(result: dict[str, Any]) -> str:
    """Return time and memory by numbers of workers and classes, for the fastest measured device and an assumed network."""
    costs = fit_costs(list_devices(result)[0][1], NETWORK)
    rows = []
    for classes in CLASSES:
        for workers in WORKERS:
            for divided in (False, True) if workers > 1 else (False,):
                setting = Setting(workers, classes, IMAGES_PER_CLASS * classes, divided=divided)
                steps = compute_seconds(setting, costs)
                longest = max(steps, key=lambda name: steps[name])
                memory = f"{compute_memory(setting) / 1e9:,.1f} GB"
                times = [format_seconds(each) for each in (*steps.values(), sum(steps.values()))]
                rows.append([f"{classes:,}", f"{workers:,}", "divided" if divided else "on each", *times, longest, memory])
    heads = ["classes", "workers", "sums and weights", "forward", "sums", "network", "solution", "all", "longest", "memory"]
    return format_table(heads, rows)


def format_prediction(result: dict[str, Any]) -> str:
    """Return what scoring all classes adds to a prediction, and the size of the weights."""
    costs = fit_costs(list_devices(result)[0][1])
    rows = []
    for classes in (1_000, *CLASSES):
        seconds = 2 * PROJECTIONS * classes / costs.scores
        sizes = [f"{SINGLE * classes * width / 1e9:,.2f} GB" for width in (PROJECTIONS, WIDTH)]
        share = seconds / costs.forward
        rows.append([f"{classes:,}", f"{seconds * 1e6:,.1f} µs", f"{share:,.2f}", *sizes])
    return format_table(["classes", "scores of an image", "of a forward pass", "weights, float32", "class means, float32"], rows)


FORMATTERS: dict[str, Callable[[dict[str, Any]], str]] = {
    "constants": format_constants,
    "check": format_check,
    "simulation": format_simulation,
    "prediction": format_prediction,
}


def fill_page(text: str, result: dict[str, Any]) -> str:
    """Return the page with its tables written again."""
    for name, formatter in FORMATTERS.items():
        filled = f"\\1{formatter(result)}\n\\2"
        text = re.sub(rf"(<!-- {name} -->\n).*?(<!-- end -->)", filled, text, flags=re.S)
    return text


def main() -> None:
    """Write the tables."""
    result = json.loads(RESULT.read_text(encoding="utf-8"))
    PAGE.write_text(fill_page(PAGE.read_text(encoding="utf-8"), result), encoding="utf-8")


if __name__ == "__main__":
    main()
