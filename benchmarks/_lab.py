"""Many class-incremental runs on one GPU: data sets stay on the device, runs share nothing else, several processes work at once.

A run is described by a `Cell` and made by the same methods, training loop and image transforms as `caprompt run`. What is left out
is what only a user needs: checkpoints, reports, tests after every task. Accuracy is measured right after each task on that task's
images, and after the last task on all; forgetting is the mean difference of the two.
"""

from __future__ import annotations

import json
import multiprocessing as mp
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import date
from functools import cache, partial
from pathlib import Path
from queue import Empty
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from caprompt import methods
from caprompt.backbones.weights import load_backbone
from caprompt.data import Samples, load_dataset
from caprompt.data.gpu_cache import GPUImageCache
from caprompt.data.image_cache import ImageCache
from caprompt.data.loader import iter_cached_batches, iter_plain_batches
from caprompt.data.tasks import hold_out, order_classes, split_tasks
from caprompt.data.transforms import EvalTransform, TrainTransform
from caprompt.engine import trainer
from caprompt.engine.inputs import RepeatableBatches
from caprompt.experiments.config import build_run_config, load_preset_settings
from caprompt.experiments.provenance import find_commit
from caprompt.experiments.run_folder import describe_environment
from caprompt.methods.base import Batches, Method
from caprompt.utils.devices import resolve_dtype
from caprompt.utils.random import derive_seed, make_generator

EVAL_BATCH = 512
MEMORY_SHARE = 0.9  # of a GPU, for the tensors of all processes together


@dataclass(frozen=True)
class Cell:
    """One run: a method with its options on tasks of a data set."""

    label: str
    method: str
    dataset: str
    backbone: str
    tasks: int
    seed: int = 0  # class order, initialization, batches
    preset: str = "budget"
    options: dict[str, Any] = field(default_factory=dict)
    validation: float = 0.0  # share of the training images to test on, in place of the test images
    per_class: int | None = None  # training images of each class, after the validation images were taken
    classes: int | None = None  # only the first classes of the order
    joint: bool = False
    effort: float = 1.0  # factor on the epochs
    untrained: tuple[int, ...] = ()  # numbers of tasks that are not trained
    sweep: tuple[dict[str, Any], ...] = ()  # options that concern prediction, each tried on the final model


class OnDevice:
    """Some images of a data set that is on the device."""

    def __init__(self, images: GPUImageCache, labels: Sequence[str], indices: Sequence[int]) -> None:
        self.images, self.labels = images, labels
        self.indices = np.asarray(indices, dtype=np.int64)
        self.device, self.is_uniform = images.device, images.is_uniform

    def __len__(self) -> int:
        return len(self.indices)

    def shape(self, index: int) -> tuple[int, int]:
        """Return height and width of an image."""
        return self.images.shape(int(self.indices[index]))

    def measure_short_side(self) -> int:
        """Return the median short side in pixels."""
        return int(np.median([min(self.shape(index)) for index in range(len(self))]))

    def take(self, positions: NDArray[np.int64]) -> Tensor:
        """Return images on the device, (B, H, W, 3)."""
        return self.images.take(self.indices[positions])

    def select_classes(self, names: Iterable[str]) -> OnDevice:
        """Return the images of these classes."""
        wanted = set(names)
        return OnDevice(self.images, self.labels, [i for i in self.indices if self.labels[i] in wanted])

    def targets(self, classes: Sequence[str]) -> list[int]:
        """Return the position of each image's class in `classes`."""
        number = {name: position for position, name in enumerate(classes)}
        return [number[self.labels[i]] for i in self.indices]


@cache
def load_images(dataset: str) -> tuple[Samples, Samples, GPUImageCache, GPUImageCache]:
    """Return training and test samples, and their decoded images on the device."""
    data, store = load_dataset(dataset), ImageCache(0)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    caches = (GPUImageCache(map(store.get, part.images), device) for part in (data.train, data.test))
    return data.train, data.test, *caches  # type: ignore[return-value]


@cache
def compute_digests(dataset: str) -> dict[str, str]:
    """Return the digests of training and test images."""
    train, test, *_ = load_images(dataset)
    return {"train": train.digest(), "test": test.digest()}


@cache
def load_network(path: str) -> tuple[Any, Any]:
    """Return a backbone and its frozen network on the device."""
    backbone = load_backbone(path)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    return backbone, backbone.build().to(device).to(resolve_dtype("auto", device))


@cache
def split(dataset: str, validation: float, per_class: int | None, seed: int) -> tuple[OnDevice, OnDevice]:
    """Return training images, and test or validation images."""
    train, test, train_images, test_images = load_images(dataset)
    if not validation:
        kept = list(range(len(train)))
        tested = OnDevice(test_images, test.labels, range(len(test)))
    else:
        positions = {id(image): i for i, image in enumerate(train.images)}
        own, held = hold_out(train, validation, seed)
        kept = [positions[id(image)] for image in own.images]
        tested = OnDevice(train_images, train.labels, [positions[id(image)] for image in held.images])
    if per_class is not None:
        seen: dict[str, int] = {}
        few = []
        for i in np.random.default_rng(seed).permutation(kept):  # a class's first images may be alike
            label = train.labels[i]
            seen[label] = seen.get(label, 0) + 1
            if seen[label] <= per_class:
                few.append(int(i))
        kept = sorted(few)
    return OnDevice(train_images, train.labels, kept), tested


def eval_batches(images: OnDevice, targets: Sequence[int], transform: EvalTransform) -> Batches:
    """Yield every image once, without augmentation."""
    return iter_plain_batches(images, range(len(images)), targets, transform, EVAL_BATCH)  # type: ignore[arg-type]


def plain_batches(images: OnDevice, targets: Sequence[int], transform: EvalTransform, share: float | None) -> Batches:
    """Yield every image once, with the crop at prediction, or with one of another share of the short side."""
    own = transform if share is None else replace(transform, resize=round(transform.size / share))
    return eval_batches(images, targets, own)


class Trial:
    """A model that learns some tasks of a cell, and what that took."""

    def __init__(self, cell: Cell) -> None:
        self.cell = cell
        self.backbone, self.vit = load_network(cell.backbone)
        overrides = {"method": cell.method, "dataset": cell.dataset, "backbone": self.backbone.name, **cell.options}
        options = build_run_config({**load_preset_settings(cell.preset, overrides), **overrides}).options
        self.method = methods.build_method(cell.method, self.vit, dict(options)).to(self.vit.cls_token.device)
        self.train, self.test = split(cell.dataset, cell.validation, cell.per_class, cell.seed if cell.per_class else 0)
        names = sorted({self.train.labels[i] for i in self.train.indices})
        self.order = order_classes(names, "shuffled", cell.seed)[: cell.classes]
        self.tasks = split_tasks(self.order, cell.tasks)
        size, mean, std = self.backbone.config.image_size, self.backbone.mean, self.backbone.std
        own = self.method.options
        self.evaluated = EvalTransform(size, mean, std, resize=round(size / own.eval_crop))
        self.augmented = TrainTransform(size, mean, std, crop_scale=own.crop_scale, flip=own.flip, brightness=own.brightness)
        self.classes: list[str] = []
        self.steps, self.training, self.fitting = 0, 0.0, 0.0

    def learn(self, names: Sequence[str], images: OnDevice | None = None) -> None:
        """Learn a task of these classes, from all of their training images or from those given."""
        cell, method, number = self.cell, self.method, len(self.method.task_sizes)
        self.classes += names
        own = self.train.select_classes(names) if images is None else images
        targets = own.targets(self.classes)
        plain = self.make_plain(own)
        method.set_class_names(self.classes)
        method.begin_task(len(names), make_generator(cell.seed, "call", number, "begin"))
        began = time.perf_counter()
        method.choose_effort(len(own), len(names))
        epochs = method.effort.epochs
        factor = 0 if number in cell.untrained else cell.effort
        method.effort = replace(method.effort, epochs=max(min(1, epochs) if factor else 0, round(factor * epochs)))
        method.choose_by_images(plain, make_generator(cell.seed, "call", number, "choose"))
        self.evaluated = replace(self.evaluated, resize=round(self.backbone.config.image_size / method.input_options.eval_crop))
        plain = self.make_plain(own)
        method.prepare(plain, make_generator(cell.seed, "call", number, "prepare"))
        seed = derive_seed(cell.seed, "call", number)

        def epoch_batches(epoch: int) -> Iterator[Any]:
            batch, name = method.effort.batch_size, [derive_seed(seed, "epoch", epoch)]
            return iter_cached_batches(own, targets, self.augmented, batch, seed=name)  # type: ignore[arg-type]

        fit_began = time.perf_counter()
        self.vit.set_compiled(method.options.compile is True and method.can_compile_step)
        trainer.fit(method, epoch_batches)
        self.vit.set_compiled(False)
        torch.cuda.synchronize() if torch.cuda.is_available() else None
        self.fitting += time.perf_counter() - fit_began
        self.steps += method.epochs * len(own)
        method.consolidate(plain, make_generator(cell.seed, "call", number, "consolidate"))
        torch.cuda.synchronize() if torch.cuda.is_available() else None
        self.training += time.perf_counter() - began
        torch.cuda.empty_cache()  # other processes need the memory, above all that of the captured training step

    def make_plain(self, images: OnDevice) -> RepeatableBatches:
        """Return images as at prediction."""
        targets = images.targets(self.classes)
        return RepeatableBatches(partial(plain_batches, images, targets, self.evaluated), images.measure_short_side)

    def measure(self, names: Sequence[str]) -> NDArray[np.bool_]:
        """Return which test images of these classes are predicted correctly."""
        return measure(self.method, self.test.select_classes(names), self.classes, self.evaluated)


def run(cell: Cell, inspect: Callable[[Method, dict[str, Any]], None] = lambda method, result: None) -> dict[str, Any]:
    """Make a run; return its figures."""
    start = time.perf_counter()
    trial, after_learning = Trial(cell), []
    for names in [trial.order] if cell.joint else trial.tasks:
        trial.learn(names)
        if not cell.joint:
            after_learning.append(trial.measure(names))
    finally_correct = [trial.measure(names) for names in trial.tasks]
    accuracies = [100 * float(np.mean(correct)) for correct in finally_correct]
    result = {
        "ACC": float(np.mean(accuracies)),
        "pooled": 100 * float(np.mean(np.concatenate(finally_correct))),
        "per_task": [round(accuracy, 2) for accuracy in accuracies],
        "image_steps": trial.steps,
        "training_seconds": round(trial.training, 1),
        "step_seconds": round(trial.fitting, 1),
        "seconds": round(time.perf_counter() - start, 1),
        "data_sha256": compute_digests(cell.dataset),
    }
    if not cell.joint:
        best = [100 * float(np.mean(correct)) for correct in after_learning]
        result["forgetting"] = float(np.mean([b - a for a, b in zip(accuracies, best, strict=True)][:-1])) if len(best) > 1 else 0.0
        result["after_learning"] = [round(accuracy, 2) for accuracy in best]
    trained = trial.method.options
    for changed in cell.sweep:
        trial.method.options = trained.model_copy(update=changed)
        correct = [trial.measure(names) for names in trial.tasks]
        result[json.dumps(changed)] = round(100 * float(np.mean([np.mean(each) for each in correct])), 2)
    inspect(trial.method, result)
    return result


@torch.no_grad()
def measure(method: Method, images: OnDevice, classes: Sequence[str], transform: EvalTransform) -> NDArray[np.bool_]:
    """Return which images are predicted correctly."""
    found = [
        method.predict(batch).logits.argmax(dim=1) == labels
        for batch, labels in eval_batches(images, images.targets(classes), transform)
    ]
    return torch.cat(found).cpu().numpy()


def _work(
    groups: mp.Queue[Any], results: mp.Queue[Any], until: float, function: Callable[[Cell], dict[str, Any]], memory_share: float
) -> None:
    torch.set_num_threads(1)
    if torch.cuda.is_available():  # at its share, a process frees what it no longer needs, and leaves the rest to others
        torch.cuda.set_per_process_memory_fraction(memory_share)
    while True:
        try:
            group = groups.get(timeout=1)
        except Empty:
            return
        for cell in group:
            if time.time() >= until:
                return
            try:
                results.put((cell, function(cell)))
            except Exception:  # the other runs go on; the error is shown with its cell
                results.put((cell, {"error": traceback.format_exc()[-1500:]}))
            torch.cuda.empty_cache()


def describe(cell: Cell) -> dict[str, Any]:
    """Return a cell as a record, with the names of data set and backbone in place of their paths on this machine."""
    return {**asdict(cell), "dataset": Path(cell.dataset).name, "backbone": Path(cell.backbone).stem}


def identify(record: dict[str, Any]) -> str:
    """Return a key by which the records of equal cells are equal; older records lack fields that were added later."""
    return json.dumps({"effort": 1.0, "untrained": [], **record}, sort_keys=True)


def run_all(
    cells: Sequence[Cell],
    log: Path,
    workers: int,
    seconds: float,
    echo: Callable[[Cell, dict[str, Any]], None],
    function: Callable[[Cell], dict[str, Any]] = run,
) -> None:
    """Make all runs that are not in the log yet, `workers` at a time; append a line for each; stop starting after `seconds`.

    A run that failed is made again. Runs that differ in their class order alone are made by one process if they are compiled,
    since it compiles once.
    """
    records = [json.loads(line) for line in log.read_text(encoding="utf-8").splitlines()] if log.is_file() else []
    known = {identify(record["cell"]) for record in records if "ACC" in record}
    todo = [cell for cell in cells if identify(describe(cell)) not in known]
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    provenance = {"commit": find_commit(), "date": date.today().isoformat(), "environment": describe_environment(device)}
    context = mp.get_context("spawn")
    queue, results = context.Queue(), context.Queue()
    groups: dict[str, list[Cell]] = {}
    for number, cell in enumerate(todo):
        is_compiled = cell.options.get("compile") is True
        groups.setdefault(identify(describe(replace(cell, seed=0))) if is_compiled else str(number), []).append(cell)
    for group in groups.values():
        queue.put(group)
    until = time.time() + seconds
    num_processes = min(workers, len(groups))
    arguments = queue, results, until, function, MEMORY_SHARE / max(1, num_processes)
    pool = [context.Process(target=_work, args=arguments, daemon=True) for _ in range(num_processes)]
    for process in pool:
        process.start()
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("a", encoding="utf-8") as file:
        done = 0
        while done < len(todo):
            try:
                item = results.get(timeout=2)
            except Empty:
                if any(process.is_alive() for process in pool):
                    continue
                break
            cell, result = item
            done += 1
            file.write(json.dumps({"cell": describe(cell), **result, **provenance}) + "\n")
            file.flush()
            echo(cell, result)
