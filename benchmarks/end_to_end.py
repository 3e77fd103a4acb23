"""Whole calls, from images in memory or files on disk to predictions or a learned task, against the bare network on the device.

    python benchmarks/end_to_end.py                  # prints a table, writes results/speed/end_to_end.json
    python benchmarks/end_to_end.py --long           # also ten tasks of 600 images, with an evaluation after each
    python benchmarks/end_to_end.py --small --out .  # a few images on the embedded backbone, also on a CPU

CAPrompt on a ViT-B/16 with random weights, taught 80 classes in eight tasks. The first call of a kind includes capturing CUDA
graphs; warm is the median of further calls. Files are JPEG of 500 x 375 pixels at quality 90, smooth colors with some noise.
The bare rates are those of the same predictor and the same training step on random tensors that are on the device already, and
the decoding ceiling is that of threads which decode the same files and do nothing else.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from _common import SPEED, build_caprompt, make_batch, median_seconds, print_table, save
from numpy.typing import NDArray
from PIL import Image
from safetensors.torch import save_file

from caprompt import ContinualClassifier
from caprompt.backbones.weights import DEFAULT_BACKBONE
from caprompt.data.images import decode
from caprompt.data.jpeg import get_decoder
from caprompt.data.prefetch import count_decode_threads
from caprompt.engine.inputs import DECODE_FACTOR
from caprompt.engine.trainer import build_optimizer
from caprompt.engine.training_step import TrainingStep
from caprompt.methods.caprompt import CAPrompt
from caprompt.utils.cuda_graphs import capture

WIDTH, HEIGHT, QUALITY = 500, 375, 90
CLASSES = 10  # of a task


@dataclass(frozen=True)
class Sizes:
    """How much is measured."""

    images: int = 1024  # of a call of `predict`
    side: int = 224  # of images in memory
    photos: int = 128  # files that differ in their pixels; further ones differ in a comment
    tasks: int = 8
    taught: int = 4  # images of each class that the model is taught
    lesson: int = 560  # files of the task whose training is measured
    lessons: int = 3  # tasks of the same kind, for a median
    epochs: int = 5
    batches: tuple[int, ...] = (256, 1)  # of the bare predictor
    repeats: int = 5
    single: int = 50  # repeats of a call for one image


SMALL = Sizes(images=4, side=64, photos=4, tasks=1, taught=1, lesson=10, lessons=1, epochs=1, batches=(2, 1), repeats=1, single=1)


@dataclass(frozen=True)
class Row:
    """One kind of call; rates are of images, or of images times epochs."""

    what: str
    images: int
    first_s: float | None
    warm_s: float


def measure_call(what: str, images: int, call: Callable[[], object], repeats: int) -> Row:
    """Measure a first call and the median of further ones; each of them ends with its result on the host."""
    seconds = []
    for _ in range(1 + repeats):
        start = time.perf_counter()
        call()
        seconds.append(time.perf_counter() - start)
    return Row(what, images, seconds[0], statistics.median(seconds[1:]))


# -- images ----------------------------------------------------------------------------------------------------------------


def make_photo(height: int, width: int, seed: int) -> NDArray[np.uint8]:
    """Make an image of smooth colors with some noise, which JPEG compresses about as well as a photograph."""
    rng = np.random.default_rng(seed)
    coarse = Image.fromarray(rng.integers(0, 256, (24, 32, 3), dtype=np.uint8))
    smooth = np.asarray(coarse.resize((width, height), Image.Resampling.BICUBIC)).astype(np.int16)
    return np.clip(smooth + rng.normal(0, 4, (height, width, 1)), 0, 255).astype(np.uint8)


def encode_photos(count: int) -> list[bytes]:
    """Return JPEG files that differ in their pixels."""

    def encode(seed: int) -> bytes:
        file = io.BytesIO()
        Image.fromarray(make_photo(HEIGHT, WIDTH, seed)).save(file, "JPEG", quality=QUALITY)
        return file.getvalue()

    with ThreadPoolExecutor(count_decode_threads()) as pool:
        return list(pool.map(encode, range(count)))


def write_files(folder: Path, photos: Sequence[bytes], classes: Sequence[str], count: int, start: int) -> Path:
    """Write `count` JPEG files, a sub-folder per class; those numbered from another `start` have other contents."""
    for number in range(count):
        own = folder / classes[number % len(classes)]
        own.mkdir(parents=True, exist_ok=True)
        photo, comment = photos[number % len(photos)], f"{start + number:08d}".encode() + bytes(number % 997)  # sizes differ, too
        segment = b"\xff\xfe" + (2 + len(comment)).to_bytes(2, "big") + comment
        (own / f"{number:05d}.jpg").write_bytes(photo[:2] + segment + photo[2:])
    return folder


def name_classes(task: int) -> list[str]:
    """Return the classes of a task."""
    return [f"class{CLASSES * task + number:03d}" for number in range(CLASSES)]


# -- models ----------------------------------------------------------------------------------------------------------------


def build_model(backbone: str | Path, sizes: Sizes) -> ContinualClassifier:
    """Return a model without classes."""
    # What CAPrompt would choose for photos with CLIP's weights: those here are random, and the images it is taught first are tiny.
    chosen = {"readout_blocks": 1, "test_crop": 0.875}
    options = {"epochs": sizes.epochs, "projections": args.projections, "device": args.device, **chosen}
    return ContinualClassifier("caprompt", backbone, **options)


def teach(model: ContinualClassifier, sizes: Sizes) -> None:
    """Teach all classes from small images, quickly."""
    for task in range(sizes.tasks):
        images = [make_photo(32, 32, 10**6 + 1000 * task + number) for number in range(CLASSES * sizes.taught)]
        model.learn((images, [name for name in name_classes(task) for _ in range(sizes.taught)]))


def write_random_backbone(folder: Path) -> Path:
    """Write a ViT-B/16 with random weights."""
    path = folder / "random.safetensors"
    save_file(build_caprompt(torch.device("cpu"), torch.float32, tasks=1).vit.state_dict(), path)
    return path


# -- measurements ------------------------------------------------------------------------------------------------------------


def measure_prediction(model: ContinualClassifier, files: Path, sizes: Sizes) -> list[Row]:
    """Measure `predict`, `evaluate` and `predict_one` on images in memory and on files."""
    arrays = [make_photo(sizes.side, sizes.side, seed) for seed in range(sizes.images)]
    stacked, pillow = np.stack(arrays), [Image.fromarray(array) for array in arrays]
    paths = sorted(files.rglob("*.jpg"))
    count, one = sizes.images, sizes.single
    return [
        measure_call("predict, arrays", count, lambda: model.predict(arrays), sizes.repeats),
        measure_call("predict, one array (N, H, W, 3)", count, lambda: model.predict(stacked), sizes.repeats),
        measure_call("predict, Pillow images", count, lambda: model.predict(pillow), sizes.repeats),
        measure_call("predict, JPEG files", count, lambda: model.predict(paths), sizes.repeats),
        measure_call("evaluate, folder of JPEG files", count, lambda: model.evaluate(files), sizes.repeats),
        measure_call("predict_one, array", 1, lambda: model.predict_one(arrays[0]), one),
        measure_call("predict_one, JPEG file", 1, lambda: model.predict_one(paths[0]), one),
    ]


def measure_bare_prediction(model: ContinualClassifier, sizes: Sizes) -> list[Row]:
    """Measure the predictor on random tensors on the device."""
    assert isinstance(model.method, CAPrompt)
    rows = []
    for size in sizes.batches:
        predictor, (images, _) = model._predictors.get(model.method, size), make_batch(model.method, size)
        seconds = median_seconds(partial(predictor, images), sizes.repeats, warm_up=sizes.repeats)
        rows.append(Row(f"bare prediction, batch of {size}", size, None, seconds))
    return rows


def measure_first_lesson(backbone: str | Path, folder: Path, lessons: Sequence[Path], sizes: Sizes) -> Row:
    """Measure the first call of `learn` of a process, and the next one.

    The process before it has done the same, so that caches on disk are filled: bytecode of Python modules, which an installer
    writes as well, and the kernels that Triton compiles.
    """
    caches = {"PYTHONPYCACHEPREFIX": str(folder / "bytecode"), "TRITON_CACHE_DIR": str(folder / "kernels")}
    command = [sys.executable, __file__, "--lessons", *map(str, lessons), "--backbone", str(backbone)]
    command += ["--projections", str(args.projections), "--device", args.device, *(["--small"] if args.small else [])]
    for _ in range(2):
        printed = subprocess.run(command, env={**os.environ, **caches}, stdout=subprocess.PIPE, text=True, check=True).stdout
    return Row(
        f"learn, {sizes.epochs} epochs, first and second call of a process", sizes.lesson * sizes.epochs, *json.loads(printed)
    )


def time_lessons() -> None:
    """Print the seconds of each lesson of this process."""
    model, seconds = build_model(args.backbone, SMALL if args.small else Sizes()), []
    for lesson in args.lessons:
        start = time.perf_counter()
        model.learn(lesson)
        seconds.append(time.perf_counter() - start)
    print(json.dumps(seconds))


def measure_learning(model: ContinualClassifier, files: Path, more_files: Sequence[Path], sizes: Sizes) -> list[Row]:
    """Measure a call of `learn` for a further task, its parts, the bare step, and calls with as many epochs as the default has."""
    times: dict[str, float] = {}  # when the first event of a kind came

    def record(event: object) -> None:
        times.setdefault(type(event).__name__, time.perf_counter() - start)

    start = time.perf_counter()
    model.learn(files, callbacks=record)
    seconds = time.perf_counter() - start
    epochs = list_epochs(model)
    later = epochs[1:] or epochs
    rows = [
        Row(f"learn, {sizes.epochs} epochs, whole call", count_trained(epochs), None, seconds),
        Row("learn, until images are read and checked", sizes.lesson, None, times["LearnStarted"]),
        Row("learn, from there to the end of the first epoch", sizes.lesson, None, times["EpochEnded"] - times["LearnStarted"]),
        Row("learn, statistics and regression after the epochs", sizes.lesson, None, seconds - times["Consolidating"]),
        Row("learn, epochs after the first", count_trained(later), None, sum(e["seconds"] for e in later)),
    ]
    method, size = model.method, model.method.effort.batch_size
    assert isinstance(method, CAPrompt)
    images, labels = make_batch(method, size)
    step = capture(TrainingStep(method, build_optimizer(method)), model.device)
    bare = median_seconds(lambda: step(images, labels), 4 * sizes.repeats, warm_up=sizes.repeats)
    rows.append(Row(f"bare training step, batch of {size}", size, None, bare))
    if not args.small:
        model.method.options = model.method.options.model_copy(update={"epochs": "auto"})
        durations = []
        for lesson in more_files:
            start = time.perf_counter()
            model.learn(lesson)
            durations.append(time.perf_counter() - start)
        epochs, seconds = list_epochs(model), statistics.median(durations)
        rows.append(Row(f"learn, the default's {len(epochs)} epochs, whole call", count_trained(epochs), None, seconds))
    return rows


def list_epochs(model: ContinualClassifier) -> list[dict[str, Any]]:
    """Return the records of the last lesson's epochs."""
    return [record for record in model.history if record["call"] == model.num_calls - 1]


def count_trained(epochs: Sequence[dict[str, Any]]) -> int:
    """Return how many images were trained on, each as often as it was."""
    return sum(record["images"] for record in epochs)


def measure_decoding(files: Path, shrink_to: int, sizes: Sizes) -> list[Row]:
    """Measure how many files threads decode that do nothing else, by both decoders."""
    paths, threads = sorted(files.rglob("*.jpg")), len(os.sched_getaffinity(0))

    def decode_part(part: Sequence[Path]) -> None:
        for path in part:
            decode(path, shrink_to)

    def decode_all() -> None:
        with ThreadPoolExecutor(threads) as pool:
            list(pool.map(decode_part, [paths[n::threads] for n in range(threads)]))

    rows = []
    if get_decoder() is not None:
        rows.append(measure_call(f"decoding by simplejpeg, {threads} threads", len(paths), decode_all, sizes.repeats))
    with patch("caprompt.data.images.get_decoder", lambda: None):
        rows.append(measure_call(f"decoding by Pillow, {threads} threads", len(paths), decode_all, sizes.repeats))
    return rows


def measure_long(model: ContinualClassifier, photos: Sequence[bytes], folder: Path) -> Row:
    """Measure ten tasks of 600 files, with an evaluation of all classes after each."""
    seconds = trained = 0.0
    for task in range(10):
        names, start = name_classes(task), 10**6 * (2 + task)
        lesson = write_files(folder / f"task{task}", photos, names, 600, start)
        write_files(folder / "test", photos, names, 200, start + 10_000)
        began = time.perf_counter()
        model.learn(lesson)
        model.evaluate(folder / "test")
        seconds += time.perf_counter() - began
        trained += 600
    return Row("ten tasks of 600 files, each evaluated", int(trained), None, seconds)


def measure(folder: Path) -> Iterator[list[Row]]:
    """Measure all rows, some at a time."""
    sizes = SMALL if args.small else Sizes()
    backbone = args.backbone or (DEFAULT_BACKBONE if args.small else write_random_backbone(folder))
    photos = encode_photos(sizes.photos)
    known = [name for task in range(sizes.tasks) for name in name_classes(task)]
    files = write_files(folder / "test", photos, known, sizes.images, start=0)
    lessons = [
        write_files(
            folder / f"lesson{number}", photos, name_classes(sizes.tasks + number), sizes.lesson, start=10**6 + 10**5 * number
        )
        for number in range(1 + sizes.lessons)
    ]
    first_lesson = measure_first_lesson(backbone, folder, lessons[:2], sizes)
    model = build_model(backbone, sizes)
    teach(model, sizes)
    yield measure_prediction(model, files, sizes)
    yield measure_bare_prediction(model, sizes)
    yield [first_lesson, *measure_learning(model, lessons[0], lessons[1:], sizes)]
    yield measure_decoding(files, DECODE_FACTOR * model.backbone.config.image_size, sizes)
    if args.long:
        yield [measure_long(build_model(backbone, sizes), photos, folder / "long")]


def main() -> None:
    """Measure, print and write; what was measured before an interruption is written."""
    rows: list[Row] = []
    with tempfile.TemporaryDirectory() as folder:
        for measured in measure(Path(folder)):
            rows += measured
            result: dict[str, Any] = {
                "projections": args.projections,
                "threads": count_decode_threads(),
                "rows": [asdict(row) for row in rows],
            }
            save("end_to_end", result, args.out)
    print_table("end_to_end", result)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--backbone", help="name or weights file (default: a ViT-B/16 with random weights)")
    parser.add_argument("--projections", type=int, default=10_000)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--small", action="store_true", help="a few images on the embedded backbone")
    parser.add_argument("--long", action="store_true", help="also ten tasks of 600 images")
    parser.add_argument("--lessons", nargs="+", type=Path, help="print the seconds of learning each of these folders, and no more")
    parser.add_argument("--out", type=Path, default=SPEED)
    args = parser.parse_args()
    time_lessons() if args.lessons else main()
