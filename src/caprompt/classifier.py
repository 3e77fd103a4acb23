"""`ContinualClassifier`, the noun people touch: it learns new image classes whenever they come, and answers in their names.

    from caprompt import ContinualClassifier

    model = ContinualClassifier()
    model.learn("photos/week1")                 # a folder per class; also a CSV, or (images, labels)
    model.learn("photos/week2")                 # new classes are simply new
    model.predict_one("cat.jpg").label
    model.save("pets")
    model = ContinualClassifier.load("pets")    # months later, in another process: learn on

Further images of known classes may come in any call. CAPrompt keeps every old prompt as it is and merges the images into what it
has summed up of their classes; methods that keep nothing of classes train on them like on any others.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from caprompt import checkpoint, methods, protocols
from caprompt.backbones import fp8
from caprompt.backbones.weights import DEFAULT_BACKBONE, Backbone, load_backbone
from caprompt.callbacks.events import Callback, Consolidating, EpochEnded, ImagesChecked, LearnEnded, LearnStarted, ignore_event
from caprompt.checkpoint.model import (
    IN_PROGRESS,
    load_saved_backbone,
    options_for_device,
    read_stopped_call,
    saved_options,
    select_by_prefix,
)
from caprompt.data.images import ImageInput
from caprompt.data.sources import Samples, Source, read_source, validate_images
from caprompt.engine import trainer
from caprompt.engine.inference import PredictorCache, choose_batch_size
from caprompt.engine.inputs import InputPipeline, RepeatableBatches
from caprompt.errors import InputError, ModelFolderError, OptionError
from caprompt.methods import options
from caprompt.methods.base import Batches
from caprompt.outputs import Evaluation, Prediction, make_evaluation, make_predictions
from caprompt.utils import optimizers
from caprompt.utils.devices import FP8, resolve_device, resolve_dtype
from caprompt.utils.random import derive_seed, make_generator
from caprompt.utils.throttle import Throttle

__all__ = ["ContinualClassifier", "Evaluation", "Prediction"]


class ContinualClassifier:
    """An image classifier that grows. Labels are strings; nobody declares how many classes or tasks will come."""

    def __init__(
        self,
        method: str = "caprompt",
        backbone: str | Path | Backbone = DEFAULT_BACKBONE,
        *,
        seed: int = 0,
        device: str = "auto",
        **settings: Any,
    ) -> None:
        self.backbone = backbone if isinstance(backbone, Backbone) else load_backbone(backbone)
        if not isinstance(seed, int) or seed < 0:
            raise OptionError(f"the seed must be a whole number from 0, not '{seed}'")
        self.seed = seed
        self.device = resolve_device(device)
        self.classes: list[str] = []
        self.history: list[dict[str, Any]] = []
        self.calls = 0
        self.images_seen: dict[str, int] = {}
        self.asked = PredictorCache()
        self.vit = self.backbone.build().to(self.device)
        self.method = methods.build_method(method, self.vit, settings).to(self.device)
        self._hold_backbone()

    def __repr__(self) -> str:
        return (
            f"ContinualClassifier({self.method.name!r}, backbone={self.backbone.name!r}, "
            f"{len(self.classes)} classes in {len(self.tasks)} tasks)"
        )

    @property
    def tasks(self) -> list[list[str]]:
        """The classes that each task brought, in order."""
        names = iter(self.classes)
        return [[next(names) for _ in range(size)] for size in self.method.task_sizes]

    # -- learning ----------------------------------------------------------------------------------------------------------

    def learn(
        self,
        source: Source,
        *,
        folder: str | Path | None = None,
        resume: bool = False,
        skip_bad: bool = False,
        listen: Callback = ignore_event,
    ) -> Samples:
        """Learn labelled images: a folder per class, a CSV of paths and labels, or (images, labels). Returns what was learned.

        With `folder`, the model is saved there when done, and after epochs a checkpoint lies beside it, as often as it is cheap;
        `resume` continues from that to the very same model. If anything goes wrong, the model is as it was before the call.
        """
        feeder = InputPipeline(self.backbone, self.device)
        samples = validate_images(
            read_source(source), feeder.store, skip_bad, lambda done, total: listen(ImagesChecked(done, total))
        )
        home = Path(folder) if folder is not None else None
        if home is not None:
            self._check_home(home)
            if not resume:
                checkpoint.discard(home / IN_PROGRESS)
        with self._unchanged_on_failure():
            self._learn(samples, feeder, home, resume, listen)
            if home is not None:
                self._check_home(home)
            self.calls += 1
            for name, count in samples.counts().items():
                self.images_seen[name] = self.images_seen.get(name, 0) + count
            if home is not None:
                self.save(home)
        if home is not None:
            checkpoint.discard(home / IN_PROGRESS)
        return samples

    def _check_home(self, home: Path) -> None:
        """A call may only be saved over the very model it continues, not over what someone else has saved since."""
        if checkpoint.exists(home) and checkpoint.read_config(home)["calls"] != self.calls:
            raise ModelFolderError(
                f"the model in '{home}' is not the one that is learning; load it again, or choose another folder"
            )

    def _learn(self, samples: Samples, feeder: InputPipeline, home: Path | None, resume: bool, listen: Callback) -> None:
        began = time.perf_counter()
        self.asked.clear()  # what was recorded is of the model as it was
        digest = samples.digest() if home is not None else ""
        position = self._resume(home, digest) if resume else None
        new = tuple(name for name in samples.classes if name not in set(self.classes))
        if position is None:
            self._begin(new)
        else:
            new = tuple(position.config["progress"]["new_classes"])
        known = tuple(name for name in samples.classes if name not in new)

        trained = samples if self.method.trains_on_known_classes else samples.of_classes(new)
        if len(trained):
            first = position.config["progress"]["epochs_done"] if position else 0
            listen(LearnStarted(len(self.tasks), new, known, len(trained), self.method.epochs, first))
            if position is None:
                self.method.prepare(self._plain(trained, feeder), self._generator("prepare"))

            pace = Throttle()

            def save(ended: EpochEnded, optimizer: torch.optim.Optimizer) -> None:
                self.history.append({"call": self.calls, **ended.figures()})
                if home is not None:
                    progress = {"epochs_done": ended.epoch + 1, "digest": digest, "new_classes": new}
                    pace(lambda: self._write(home / IN_PROGRESS, progress, optimizers.optimizer_state(optimizer)))

            moments = select_by_prefix(position.tensors, "optimizer.") if position else None
            seed = derive_seed(self.seed, "call", self.calls)
            epoch_batches = feeder.augmented(trained, self._targets(trained), self.method.options, seed)
            trainer.fit(self.method, epoch_batches, start=first, optimizer_tensors=moments, listen=listen, save=save)
        listen(Consolidating())
        self.method.consolidate(self._plain(samples, feeder), self._generator("consolidate"))
        listen(LearnEnded(len(self.classes), time.perf_counter() - began))

    def _plain(self, samples: Samples, feeder: InputPipeline) -> Batches:
        size = choose_batch_size(len(samples), None, self.device)
        return RepeatableBatches(lambda: self._shown(samples, feeder, self._targets(samples), size))

    def _shown(self, samples: Samples, feeder: InputPipeline, groups: Sequence[int], batch_size: int) -> Batches:
        """Every image once, un-augmented; `groups` says which of them a released program would show together."""
        for part, size in protocols.group_for_batches(self.method.options, groups, batch_size):
            chosen = samples.select(part)
            yield from feeder.plain(chosen, self._targets(chosen), self.method.options, size)

    def _begin(self, new: Sequence[str]) -> None:
        if new:
            self.classes.extend(new)
            self.method.announce(self.classes)
            self.method.begin_task(len(new), self._generator("begin"))

    def _generator(self, purpose: str) -> torch.Generator:
        return make_generator(self.seed, "call", self.calls, purpose)

    @contextmanager
    def _unchanged_on_failure(self) -> Iterator[None]:
        before = {name: tensor.clone() for name, tensor in self.method.state().items()}
        tasks, classes, history, calls = list(self.method.task_sizes), list(self.classes), list(self.history), self.calls
        images_seen = dict(self.images_seen)
        try:
            yield
        except BaseException:
            self.classes, self.history, self.calls, self.images_seen = classes, history, calls, images_seen
            self._rebuild(tasks, before)
            raise

    def _rebuild(self, task_sizes: Sequence[int], state: Mapping[str, Tensor]) -> None:
        self.asked.clear()
        fresh = type(self.method)(self.vit, self.method.options).to(self.device)
        fresh.restore(task_sizes, state)
        self.method = fresh

    # -- answers -----------------------------------------------------------------------------------------------------------

    def predict_one(self, picture: ImageInput | str, *, top: int = 5, **settings: Any) -> Prediction:
        """The answer for one image: a path, a PIL image or an array."""
        return self.predict([picture], top=top, **settings)[0]

    def predict(
        self, pictures: Sequence[ImageInput | str], *, top: int = 5, batch_size: int | None = None, **settings: Any
    ) -> list[Prediction]:
        """The answer for each image; company in a batch changes nothing. `settings` are options such as cycles="auto"."""
        self.require_classes()
        if top < 1:
            raise OptionError(f"top must be at least 1, not {top}")
        paths = tuple(Path(picture) if isinstance(picture, str) else picture for picture in pictures)
        samples = Samples(paths, ("unlabelled",) * len(paths))
        feeder = InputPipeline(self.backbone, self.device, budget_bytes=0)  # each is looked at once
        size = choose_batch_size(len(paths), batch_size, self.device)
        with self.with_options(settings):
            ask = self.asked.answering(self.method, size)
            answers = [ask(images) for images, _ in feeder.plain(samples, [0] * len(paths), self.method.options, size)]
        return [prediction for answer in answers for prediction in make_predictions(answer, self.classes, top)]

    def evaluate(
        self,
        source: Source,
        *,
        batch_size: int | None = None,
        skip_bad: bool = False,
        give_task: bool = False,
        tasks: Sequence[Sequence[str]] | None = None,
        **settings: Any,
    ) -> Evaluation:
        """Accuracy on labelled images, by task or other groups (`tasks`). `give_task` tells the method each image's true task."""
        feeder = InputPipeline(self.backbone, self.device)
        samples, targets = self.labelled(source, feeder, skip_bad)
        size = choose_batch_size(len(samples), batch_size, self.device)
        true, answers = [], []
        with self.with_options(settings):
            ask = self.asked.answering(self.method, size)
            for images, labels in self._shown(samples, feeder, self.method.task_of_class[targets].tolist(), size):
                answers.append(self.method.predict(images, self.method.task_of_class[labels]) if give_task else ask(images))
                true.append(labels)
        protocol = protocols.protocol(self.method.options, give_task)
        return make_evaluation(answers, torch.cat(true).cpu(), self.classes, tasks or self.tasks, samples.skipped, protocol)

    def labelled(self, source: Source, feeder: InputPipeline, skip_bad: bool) -> tuple[Samples, list[int]]:
        """Images to test with, and the number of each one's class; every class must have been learned."""
        self.require_classes()
        samples = validate_images(read_source(source), feeder.store, skip_bad)
        for name in samples.classes:
            if name not in self.classes:
                raise InputError(f"class '{name}' has not been learned; this model knows: {', '.join(self.classes)}")
        return samples, self._targets(samples)

    def _targets(self, samples: Samples) -> list[int]:
        number = {name: index for index, name in enumerate(self.classes)}
        return [number[label] for label in samples.labels]

    @contextmanager
    def with_options(self, settings: Mapping[str, Any]) -> Iterator[None]:
        """Other options for one prediction; only those that do not concern training."""
        before = self.method.options
        for name in settings:
            if name in type(before).model_fields and name not in before.at_prediction:
                raise InputError(f"option '{name}' belongs to training; it cannot be changed at prediction")
        changed = options.validate_options(type(before), {**before.model_dump(), **settings}, owner=self.method.name)
        try:
            self.method.options = changed
            self._hold_backbone()
            yield
        finally:
            self.method.options = before
            self._hold_backbone()

    def _hold_backbone(self) -> None:
        """Hold the frozen backbone as the options say; other numbers than before are read anew from its file."""
        self.vit.recompute = self.method.options.recompute
        self.vit.set_compiled(self.method.options.compile)
        precision = self.method.options.precision
        if fp8.set_precision(self.vit, resolve_dtype(precision, self.device), precision == FP8, self.backbone.weights):
            self.asked.clear()

    def require_classes(self) -> None:
        """A model that knows nothing cannot answer."""
        if not self.classes:
            raise InputError("this model has not learned any class yet; teach it some with learn")

    # -- keeping -----------------------------------------------------------------------------------------------------------

    def save(self, folder: str | Path) -> None:
        """Write the model: a few small files, replaced together or not at all. The backbone is named, not copied."""
        self._write(Path(folder), progress=None, moments={})

    def _write(self, folder: Path, progress: Mapping[str, Any] | None, moments: Mapping[str, Tensor]) -> None:
        config = {**self._config(), "progress": progress}
        task_of_class = self.method.task_of_class.tolist()
        classes = [
            {"name": name, "task": task + 1, "images": self.images_seen.get(name, 0)}
            for name, task in zip(self.classes, task_of_class, strict=True)
        ]
        tensors = {
            **{f"method.{name}": tensor for name, tensor in self.method.state().items()},
            **{f"optimizer.{name}": tensor for name, tensor in moments.items()},
        }
        checkpoint.write(folder, checkpoint.Saved(config, classes, tensors, self.history))

    def _config(self) -> dict[str, Any]:
        return {
            "method": self.method.name,
            "options": self.method.options.model_dump(mode="json"),
            "backbone": {"name": self.backbone.name, "path": str(self.backbone.path), "sha256": self.backbone.sha256},
            "seed": self.seed,
            "task_sizes": self.method.task_sizes,
            "calls": self.calls,
        }

    @classmethod
    def load(cls, folder: str | Path, *, backbone: str | Path | None = None, device: str = "auto") -> ContinualClassifier:
        """Read a saved model. `backbone` says where the backbone's file is, if it has moved."""
        folder = Path(folder)
        if not checkpoint.exists(folder) and checkpoint.exists(folder / IN_PROGRESS):
            raise ModelFolderError(f"learning was stopped before '{folder}' held a finished model; continue it with --resume")
        saved = checkpoint.read(folder)
        config = saved.config
        found = load_saved_backbone(config["backbone"], folder, backbone)
        model = cls(
            config["method"], found, seed=config["seed"], device=device, **options_for_device(resolve_device(device), config)
        )
        model._take(saved)
        return model

    @classmethod
    def unfinished(cls, folder: str | Path, *, device: str = "auto") -> ContinualClassifier | None:
        """The model, still without classes, whose very first call was stopped in this folder; `learn` it with `resume=True`."""
        folder = Path(folder)
        if checkpoint.exists(folder) or not checkpoint.exists(folder / IN_PROGRESS):
            return None
        config = checkpoint.read_config(folder / IN_PROGRESS)
        found = load_saved_backbone(config["backbone"], folder, None)
        return cls(config["method"], found, seed=config["seed"], device=device, **saved_options(config))

    def _take(self, saved: checkpoint.Saved) -> None:
        self.classes = [entry["name"] for entry in saved.classes]
        self.images_seen = {entry["name"]: entry["images"] for entry in saved.classes}
        self.history = [dict(record) for record in saved.metrics]
        self.calls = saved.config["calls"]
        self._rebuild(saved.config["task_sizes"], select_by_prefix(saved.tensors, "method."))

    def _resume(self, home: Path | None, digest: str) -> checkpoint.Saved | None:
        """Take over the checkpoint of a stopped call, if there is one for this model and these images."""
        saved = read_stopped_call(home, self._config(), digest) if home is not None else None
        if saved is not None:
            self._take(saved)
        return saved
