"""Soak test: one process learns 200 tasks and predicts 200,000 images, while memory, open files and threads have to stay flat.

    OMP_NUM_THREADS=1 python benchmarks/soak.py      # writes results/speed/soak.json, the plot and the tables of docs/soak.md
    python benchmarks/soak.py --lessons 20 --images 100 --no-save
    python benchmarks/soak.py --page                 # only the plot and the tables, from results/speed/soak.json

Every lesson is a task of two new classes, saved to a folder; then images are predicted, a hundred a call, half of them from files
and half from arrays. The default method with fewer projections runs on a small ViT with random weights: what is measured is the
growth of the process, for which it does not matter how large the network is and what it sees.

A model grows with its classes, as it should. To tell that from a leak, the whole is done twice, in two processes side by side:

- undone: after the first tenth, every lesson is undone once its images are predicted, and the model is loaded again. The model
  stays as large as it is, so that memory has to stay flat.
- kept: all lessons stay, as in normal use, and every tenth lesson the model is loaded again. Memory grows with the model.

Linux only, since the figures are read from /proc.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import re
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
from _common import ROOT, SPEED, save
from numpy.typing import NDArray
from PIL import Image

from caprompt import ContinualClassifier
from caprompt.backbones.vit import ViTConfig
from caprompt.classifier.editing import undo
from caprompt.testing.tiny import tiny_vit, write_backbone

SMALL = ViTConfig(image_size=32, patch_size=8, width=64, depth=2, heads=2, mlp_width=128)
OPTIONS: dict[str, Any] = {"projections": 500, "length": 4, "epochs": 2, "batch_size": 16}
CLASSES, IMAGES = 2, 8  # of a lesson: new classes, and images of each
CALL = 100  # images of a call of predict
LOAD_EVERY = 10  # lessons
WARM_UP = 0.1  # share of the lessons after which memory has to stay flat
RUNS = ("undone", "kept")
LIMIT = 2.0  # percent of growth
PAGE, PLOT = ROOT / "docs" / "soak.md", ROOT / "docs" / "images" / "soak.svg"


@dataclass(frozen=True)
class Reading:
    """The process after a lesson and its predictions."""

    lesson: int
    classes: int
    predicted: int  # images so far
    resident_mb: float
    model_mb: float  # tensors of the model: what grows by design
    open_files: int
    threads: int
    lesson_seconds: float
    predict_seconds: float


def read_resident_mb() -> float:
    """Return the resident memory of this process in MB."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


def make_image(number: int, seed: int) -> NDArray[np.uint8]:
    """Return an image (32, 32, 3) of a class: its coarse pattern in noise."""
    pattern = np.random.default_rng(number).normal(0, 40, (4, 4, 3)).repeat(8, axis=0).repeat(8, axis=1)
    noise = np.random.default_rng([number, seed]).normal(0, 25, pattern.shape)
    return np.clip(128 + pattern + noise, 0, 255).astype(np.uint8)


def make_lesson(lesson: int) -> tuple[list[NDArray[np.uint8]], list[str]]:
    """Return images and labels of classes that no other lesson has."""
    numbers = [CLASSES * lesson + offset for offset in range(CLASSES) for _ in range(IMAGES)]
    return [make_image(number, seed) for seed, number in enumerate(numbers)], [f"class {number}" for number in numbers]


def write_files(folder: Path, count: int) -> list[Path]:
    """Write images of the first classes as JPEG files."""
    paths = [folder / f"{position:05d}.jpg" for position in range(count)]
    for position, path in enumerate(paths):
        Image.fromarray(make_image(position % 100, 1000 + position)).save(path, quality=90)
    return paths


def count_warm_up(lessons: int) -> int:
    """Return the number of lessons in the first tenth."""
    return max(1, round(WARM_UP * lessons))


def predict(model: ContinualClassifier, images: Sequence[Any]) -> None:
    """Predict images, a call for each hundred."""
    for start in range(0, len(images), CALL):
        part = images[start : start + CALL]
        assert len(model.predict(part)) == len(part)


def soak(run: str, lessons: int, images: int, folder: Path) -> Iterator[Reading]:
    """Learn and predict, and yield a reading after every lesson."""
    backbone = write_backbone(folder / "small.safetensors", tiny_vit(0, SMALL))
    files = write_files(folder, images // 2)
    arrays = [make_image(position % 100, 5000 + position) for position in range(images - len(files))]
    model = ContinualClassifier(backbone=backbone, device="cpu", **OPTIONS)
    for lesson in range(1, lessons + 1):
        start = time.perf_counter()
        model.learn(make_lesson(lesson), checkpoint_dir=folder / "model")
        learned = time.perf_counter()
        predict(model, files)
        predict(model, arrays)
        predicted = time.perf_counter()
        is_undone = run == "undone" and lesson > count_warm_up(lessons)
        if is_undone:
            undo(folder / "model")
        if is_undone or lesson % LOAD_EVERY == 0:
            model = ContinualClassifier.load(folder / "model", device="cpu")
        gc.collect()  # so that the figures do not depend on when Python would do it
        yield Reading(
            lesson=lesson,
            classes=len(model.classes),
            predicted=lesson * images,
            resident_mb=read_resident_mb(),
            model_mb=sum(tensor.nbytes for tensor in model.method.state().values()) / 1e6,
            open_files=len(list(Path("/proc/self/fd").iterdir())),
            threads=len(list(Path("/proc/self/task").iterdir())),
            lesson_seconds=learned - start,
            predict_seconds=predicted - learned,
        )


def summarize(readings: Sequence[Reading]) -> dict[str, Any]:
    """Return the growth since the end of the first tenth, in percent and in MB, of which the tensors of the model are a part.

    >>> make = lambda lesson, mb: Reading(lesson, 2, 10, mb, mb / 100, 5, 3, 1.0, 1.0)
    >>> summary = summarize([make(1, 90.0), make(2, 100.0), *(make(lesson, 101.0) for lesson in range(3, 21))])
    >>> summary["growth_percent"], summary["growth_mb"], summary["model_growth_mb"], summary["open_files_growth"]
    (1.0, 1.0, 0.01, 0)
    """
    first, last = readings[count_warm_up(len(readings)) - 1], readings[-1]
    return {
        "lessons": last.lesson,
        "images": last.predicted,
        "first_lesson": first.lesson,
        "growth_percent": round(100 * (last.resident_mb / first.resident_mb - 1), 2),
        "growth_mb": round(last.resident_mb - first.resident_mb, 2),
        "model_growth_mb": round(last.model_mb - first.model_mb, 2),
        "open_files_growth": last.open_files - first.open_files,
        "threads_growth": last.threads - first.threads,
    }


def format_result(result: dict[str, Any]) -> str:
    """Return the growth of both runs, and tables of some of their readings."""
    heads = ["lessons after the first tenth", "memory", "of it tensors of the model", "open files", "threads"]
    lines = ["| " + " | ".join(heads) + " |", "|---|" + "--:|" * 4]
    for run in RUNS:
        growth = result[run]["summary"]
        memory = f"{growth['growth_percent']:+.2f} %, {growth['growth_mb']:+.1f} MB | {growth['model_growth_mb']:+.1f} MB"
        lines.append(f"| {run} | {memory} | {growth['open_files_growth']:+d} | {growth['threads_growth']:+d} |")
    return "\n\n".join(["\n".join(lines), *(f"Lessons {run}:\n\n{format_readings(result[run])}" for run in RUNS)])


def format_readings(part: dict[str, Any]) -> str:
    """Return a table of some of the readings of a run."""
    lines = ["| lesson | predicted | classes | memory, MB | model, MB | open files | threads | lesson, s | images/s |"]
    lines.append("|" + "--:|" * 9)
    readings = part["readings"]
    shown = sorted({1, *(round(len(readings) * share) for share in (0.05, 0.1, 0.25, 0.5, 0.75, 1.0))} - {0})
    for row in (readings[lesson - 1] for lesson in shown):
        speed = row["predicted"] / row["lesson"] / row["predict_seconds"]
        counts = f"{row['lesson']} | {row['predicted']:,} | {row['classes']}"
        memory = f"{row['resident_mb']:.1f} | {row['model_mb']:.1f} | {row['open_files']} | {row['threads']}"
        lines.append(f"| {counts} | {memory} | {row['lesson_seconds']:.2f} | {speed:,.0f} |")
    return "\n".join(lines)


def fill_page(text: str, result: dict[str, Any]) -> str:
    """Return the page with the part between `<!-- soak -->` and `<!-- end -->` written anew."""
    conditions = "{date}, {environment[device]}, torch {environment[torch]}, Python {environment[python]}.".format(**result)
    image = f"![Memory, open files, threads and times over the lessons](images/{PLOT.name})"
    part = f"<!-- soak -->\n{image}\n\n{format_result(result)}\n\n{conditions}\n<!-- end -->"
    return re.sub(r"<!-- soak -->\n.*?<!-- end -->", lambda _: part, text, flags=re.DOTALL)


def plot(result: dict[str, Any], path: Path) -> None:
    """Plot memory, open files and threads, and times of both runs against lessons."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    panels: list[tuple[str, Callable[[dict[str, Any]], float]]] = [
        ("resident memory, MB", lambda row: row["resident_mb"]),
        ("open files (lines) and threads (dashed)", lambda row: row["open_files"]),
        ("time of a lesson, s", lambda row: row["lesson_seconds"]),
        ("time of a prediction, ms", lambda row: 1e3 * row["predict_seconds"] * row["lesson"] / row["predicted"]),
    ]
    with rc_context({"svg.hashsalt": "soak", "svg.fonttype": "none"}):
        figure = Figure(figsize=(9, 6), layout="constrained")
        grid = figure.subplots(2, 2, sharex=True).flat
        for axes, (title, get) in zip(grid, panels, strict=True):
            for run, color in zip(RUNS, ("tab:blue", "tab:orange"), strict=True):
                readings = result[run]["readings"]
                lessons = [row["lesson"] for row in readings]
                axes.plot(lessons, [get(row) for row in readings], color=color, label=f"lessons {run}", linewidth=1.2)
                if "threads" in title:
                    axes.plot(lessons, [row["threads"] for row in readings], color=color, linestyle="--", linewidth=1.2)
            axes.set(title=title, ylim=(0, 1.15 * axes.get_ylim()[1]))
            axes.grid(alpha=0.25)
        summary = result["undone"]["summary"]
        memory = result["undone"]["readings"][summary["first_lesson"] - 1]["resident_mb"]
        first, _, *lower = figure.axes
        first.axhspan(memory, memory * (1 + LIMIT / 100), color="tab:green", alpha=0.3, label=f"+{LIMIT:g} %")
        first.legend(frameon=False, loc="lower right")
        for axes in lower:
            axes.set(xlabel="lessons")
        figure.savefig(path, metadata={"Date": None})


def measure(run: str, lessons: int, images: int) -> dict[str, Any]:
    """Do one of the runs, report progress on stderr, and return its readings."""
    readings = []
    with tempfile.TemporaryDirectory() as folder:
        for reading in soak(run, lessons, images, Path(folder)):
            readings.append(reading)
            if reading.lesson % 10 == 0:
                print(f"{run} {reading.lesson}/{lessons}: {reading.resident_mb:.1f} MB", file=sys.stderr, flush=True)
    rows = [{key: round(value, 4) for key, value in asdict(reading).items()} for reading in readings]
    return {"summary": summarize(readings), "readings": rows}


def measure_all(lessons: int, images: int) -> dict[str, Any]:
    """Do both runs at the same time, each in a process of its own."""
    with ProcessPoolExecutor(len(RUNS), get_context("spawn")) as pool:
        started = {run: pool.submit(measure, run, lessons, images) for run in RUNS}
        return {run: future.result() for run, future in started.items()}


def main() -> int:
    """Measure, print, write; return 1 if memory grew by more than the limit though the model did not."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lessons", type=int, default=200)
    parser.add_argument("--images", type=int, default=1000, help="predicted after every lesson")
    parser.add_argument("--no-save", dest="save", action="store_false")
    parser.add_argument("--page", action="store_true", help="measure nothing: write plot and tables from the saved result")
    args = parser.parse_args()
    if not args.page:
        settings = {"vit": asdict(SMALL), "options": OPTIONS, "classes_per_lesson": CLASSES, "images_per_class": IMAGES}
        result = {"settings": settings, **measure_all(args.lessons, args.images)}
        print(format_result(result))
        if args.save:
            save("soak", result, SPEED)
    if args.save or args.page:
        result = json.loads((SPEED / "soak.json").read_text(encoding="utf-8"))
        plot(result, PLOT)
        PAGE.write_text(fill_page(PAGE.read_text(encoding="utf-8"), result), encoding="utf-8")
    return int(result["undone"]["summary"]["growth_percent"] > LIMIT)


if __name__ == "__main__":
    sys.exit(main())
