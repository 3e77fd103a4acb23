"""The tables of the speed benchmarks: for their own print, and in docs/performance.md between `<!-- NAME -->` and `<!-- end -->`.

python benchmarks/page.py                        # after any of the benchmarks; without a new figure nothing changes
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

from measuring import RESULTS

PAGE = RESULTS.parents[1] / "docs" / "performance.md"


def table(heads: list[str], rows: list[list[str]]) -> str:
    """Markdown, the first column to the left.

    >>> print(table(["a", "b"], [["x", "1"]]))
    | a | b |
    |---|--:|
    | x | 1 |
    """
    lines = [heads, ["---", *["--:"] * (len(heads) - 1)], *rows]
    return "\n".join(f"|{'|'.join(line)}|" if line[0] == "---" else f"| {' | '.join(line)} |" for line in lines)


def conditions(found: dict[str, Any]) -> str:
    """Where and when, and what the device does at best."""
    place = "{device}, torch {torch}, Python {python}".format(**found["environment"])
    best = found.get("ceilings")
    on_gpu = found["environment"]["device"].startswith("cuda")
    product = f"{best['matrix_tflops']:.{0 if on_gpu else 2}f} TFLOP/s {'bf16' if on_gpu else 'fp32'}" if best else ""
    ceiling = f"; ceilings {product}, {best['copy_tb_per_s']:.2f} TB/s" if best else ""
    return f"{found['date']}, {place}{ceiling}."


def train_step(found: dict[str, Any]) -> str:
    """Speed, memory and error of each way to step."""
    heads = ["step", "batch", "images/s", "ms", "GB", "of the ceiling", "loss error", "gradient error"]
    rows = []
    for row in found["rows"]:
        errors = [f"{row[key]:.1e}" if key in row else "" for key in ("loss_error", "gradient_error")]
        speed = [str(row["batch"]), f"{row['images_per_s']:,.0f}", f"{row['ms']:.2f}", f"{row['gb']:.2f}"]
        rows.append([row["variant"], *speed, f"{row['share_of_ceiling']:.0%}", *errors])
    return f"{table(heads, rows)}\n\n{profiled(found)}" if any("where" in row for row in found["rows"]) else table(heads, rows)


def profiled(found: dict[str, Any]) -> str:
    """Where the time goes of each way to do it, by the profiler."""
    heads, rows = ["way", "batch", "kernels", "products, ms", "attention, ms", "all else, ms"], []
    for row in found["rows"]:
        if spent := row.get("where"):
            parts = [f"{spent[kind]:.2f}" for kind in ("products", "attention", "else")]
            rows.append([row["variant"], str(row["batch"]), f"{spent['kernels']:.0f}", *parts])
    return table(heads, rows)


def prediction(found: dict[str, Any]) -> str:
    """Speed of each way to predict."""
    rows = [
        [
            row["variant"],
            str(row["batch"]),
            *(f"{row['images_per_s']:,.0f}", f"{row['ms']:.2f}", f"{row['gb']:.2f}", f"{row['share_of_ceiling']:.0%}"),
        ]
        for row in found["rows"]
    ]
    speeds = table(["prediction", "batch", "images/s", "ms", "GB", "of the ceiling"], rows)
    return f"{speeds}\n\n{profiled(found)}" if any("where" in row for row in found["rows"]) else speeds


def epoch(found: dict[str, Any]) -> str:
    """An epoch from files against the bare step."""
    rows = [
        [str(row["batch"]), f"{row['epoch_images_per_s']:,.0f}", f"{row['step_images_per_s']:,.0f}", f"{row['share']:.0%}"]
        for row in found["rows"]
    ]
    return table(["batch", "epoch from files, images/s", "bare step, images/s", "share"], rows)


def growth(found: dict[str, Any]) -> str:
    """Step and prediction by tasks and classes, and what statistics take."""
    rows = [
        [str(row["tasks"]), f"{row['classes']:,}", f"{row['step_ms']:.2f}", f"{row['prediction_ms']:.2f}"]
        for row in [*found["by_tasks"], *found["by_classes"]]
    ]
    sizes = [[kind, f"{size:,}", f"{size / 1e5:.2f} GB"] for kind, size in found["bytes_per_class"].items()]
    aligned = found["alignment"]
    return "\n\n".join(
        [
            table(["tasks", "classes", "step, ms", "prediction, ms"], rows),
            f"Alignment of {aligned['classes']} classes, {aligned['width']} wide: {aligned['seconds']:.1f} s.",
            table(["statistics", "bytes a class", "10,000 classes"], sizes),
        ]
    )


def cpu_step(found: dict[str, Any]) -> str:
    """The step on a CPU, in one run with the plain one."""
    plain = next(iter(found["seconds"].values()))
    rows = [
        [
            name,
            f"{1e3 * seconds:.0f}",
            f"{found['batch'] / seconds:.0f}",
            f"{plain / seconds:.2f} x",
            f"{found['shares'][name]:.0%}",
        ]
        for name, seconds in found["seconds"].items()
    ]
    return table(["step", "ms", "images/s", "against plain", "of the ceiling"], rows)


def invariance(found: dict[str, Any]) -> str:
    """Labels and probabilities alone and in company."""
    heads = ["precision", "batch", "rounding", "labels unlike alone at first", "bound", "asked again"]
    heads += ["labels unlike alone", "difference", "labels unlike fp32", "difference"]
    rows = []
    for row in found["rows"]:
        moved = [f"{row['rounding']:.2f}", str(row["labels_first"]), f"{row['bound']:.2f}", f"{row['again_percent']:.1f} %"]
        against = [f"{row[f'{what}_{other}']:.2g}" for other in ("alone", "fp32") for what in ("labels", "difference")]
        rows.append([row["precision"], str(row["batch"]), *moved, *against])
    return f"{table(heads, rows)}\n\n{found['images']:,} images."


def precision(found: dict[str, Any]) -> str:
    """The same runs in half and in full precision."""
    heads = ["precision", "seed", "ACC", "AF", "task identified", "learning, s"]
    rows = []
    for row in found["rows"]:
        accuracies = [f"{row[name]:.2f}" for name in ("ACC", "AF", "task_identification")]
        rows.append([row["precision"], str(row["seed"]), *accuracies, f"{row['seconds']:.0f}"])
    return f"{table(heads, rows)}\n\nBackbone {found['backbone']}, {found['images_per_class']} images of each class."


PARTS: dict[str, Callable[[dict[str, Any]], str]] = {
    part.__name__: part for part in (train_step, prediction, epoch, growth, cpu_step, invariance, precision)
}


def filled(text: str) -> str:
    """The page with every marked place filled from its file."""

    def part(match: re.Match[str]) -> str:
        name, path = match[1], RESULTS / f"{match[1]}.json"
        if not path.is_file():
            return f"<!-- {name} -->\nNot measured yet.\n<!-- end -->"
        found = json.loads(path.read_text(encoding="utf-8"))
        return f"<!-- {name} -->\n{PARTS[name](found)}\n\n{conditions(found)}\n<!-- end -->"

    return re.sub(r"<!-- (\w+) -->\n.*?<!-- end -->", part, text, flags=re.DOTALL)


if __name__ == "__main__":
    PAGE.write_text(filled(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
