"""What a model is: backbone, method, classes, calibration and history, and how they are saved and loaded."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import Tensor

from caprompt import __version__, checkpoint, methods
from caprompt.backbones import fp8
from caprompt.backbones.weights import DEFAULT_BACKBONE, Backbone, load_backbone
from caprompt.calibration import Calibration, Evidence, dump_evidence, load_evidence
from caprompt.checkpoint import hub
from caprompt.checkpoint.model import (
    IN_PROGRESS,
    check_dtypes,
    check_growth,
    check_removed,
    explain_damage,
    find_foreign_file,
    get_options_for_device,
    get_saved_options,
    load_saved_backbone,
    read_stopped_call,
    select_by_prefix,
)
from caprompt.classifier.class_table import ClassTable
from caprompt.classifier.info import ModelInfo, make_info
from caprompt.data.labels import Label
from caprompt.data.samples import Samples
from caprompt.engine.inference import PredictorCache
from caprompt.errors import InputError, ModelFolderError, OptionError
from caprompt.methods.base import Method
from caprompt.methods.options import validate_options
from caprompt.utils.devices import FP8, resolve_device, resolve_dtype
from caprompt.utils.paths import expand_user

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["NUM_VERSIONS", "ModelState", "check_local_folder"]

NUM_VERSIONS = 5  # earlier versions of a model that are kept for `undo`


class ModelState:
    """A method on a backbone, with what is known about its classes. `ContinualClassifier` learns and predicts with it."""

    def __init__(
        self,
        method: str = "caprompt",
        backbone: str | Path | Backbone = DEFAULT_BACKBONE,
        *,
        seed: int = 0,
        device: str = "auto",
        **options: Any,
    ) -> None:
        self.backbone = backbone if isinstance(backbone, Backbone) else load_backbone(backbone)
        if not isinstance(seed, int) or seed < 0:
            raise OptionError(f"the seed must be a non-negative integer, not '{seed}'")
        self.seed = seed
        self.device = resolve_device(device)
        self.table = ClassTable()
        self.calibration = Calibration()
        self.evidence: list[Evidence] = []  # for later calibrations
        self.history: list[dict[str, Any]] = []
        self.num_calls = 0
        self._identity: str | None = None  # of the version on disk that this model was loaded from or last saved as
        self._predictors = PredictorCache()
        self._vit = self.backbone.build().to(self.device)
        self.method = methods.build_method(method, self._vit, options).to(self.device)
        self._configure_backbone()

    def __repr__(self) -> str:
        return (
            f"{type(self).__name__}({self.method.name!r}, backbone={self.backbone.name!r}, "
            f"{len(self.classes)} classes in {len(self.tasks)} tasks)"
        )

    def info(self) -> ModelInfo:
        """Return what this model holds: classes, lessons, backbone, and what is kept of images."""
        return make_info(self._make_saved(None, {}))

    @property
    def identity(self) -> str | None:
        """The version on disk that this model was loaded from or last saved as (`checkpoint.read_identity`)."""
        return self._identity

    @property
    def classes(self) -> list[str]:
        """Names of the classes, in the order in which they were learned."""
        return self.table.names

    @property
    def labels(self) -> list[Label]:
        """The labels of `classes`: the same names, or the integers that they were taught as."""
        return self.table.labels

    @property
    def images_seen(self) -> dict[str, int]:
        """Number of images that were learned of each class."""
        return self.table.images_seen

    @property
    def lessons(self) -> list[dict[str, Any]]:
        """Records of the calls of `learn` and of the edits, in their order."""
        return self.table.lessons

    @property
    def tasks(self) -> list[list[str]]:
        """The classes that each task brought, in order; classes of several tasks that were joined count to the first."""
        members: list[list[str]] = [[] for _ in self.method.task_sizes]
        task_of_output = self.method.task_of_class.tolist()
        for name, output in zip(self.classes, self.table.first_outputs(), strict=True):
            members[task_of_output[output]].append(name)
        return members

    def describe_lesson(self, seconds: float | None = None) -> dict[str, Any]:
        """Return what is recorded of every lesson and edit."""
        effort = self.method.effort
        settings = {"epochs": self.method.epochs, "batch_size": effort.batch_size, "learning_rate": effort.learning_rate}
        lesson: dict[str, Any] = {"date": datetime.now(timezone.utc).isoformat(timespec="seconds"), "caprompt": __version__}
        return lesson if seconds is None else {**lesson, "seconds": round(seconds, 1), "settings": settings}

    # -- options and devices ---------------------------------------------------------------------------------------------------

    @contextmanager
    def override_options(self, options: Mapping[str, Any]) -> Iterator[None]:
        """Use other options within the context; only those that do not concern training."""
        if not options:
            yield
            return
        before = self.method.options
        for name in options:
            if name in type(before).model_fields and name not in before.at_prediction:
                raise InputError(f"option '{name}' belongs to training; it cannot be changed at prediction")
        changed = validate_options(type(before), {**before.model_dump(), **options}, owner=self.method.name)
        try:
            self.method.options = changed
            self._configure_backbone()
            yield
        finally:
            self.method.options = before
            self._configure_backbone()

    def _configure_backbone(self) -> None:
        """Set the frozen backbone to the dtype and the compilation that the options set."""
        self._vit.recompute = self.method.options.recompute
        # 'auto' is decided when the length of a training is known.
        self._vit.set_compiled(self.method.options.compile is True and self.method.can_compile_step)
        precision = self.method.options.precision
        if fp8.set_precision(self._vit, resolve_dtype(precision, self.device), precision == FP8, self.backbone.weights):
            self._predictors.clear()

    def _build_method(self) -> Method:
        """Return an empty method of the same kind and options."""
        fresh = type(self.method)(self._vit, self.method.options).to(self.device)
        fresh.removed_state = self.method.removed_state
        return fresh

    def _rebuild_method(self, task_sizes: Sequence[int], state: Mapping[str, Tensor]) -> None:
        self._predictors.clear()
        fresh = self._build_method()
        fresh.restore(task_sizes, state)
        self.method = fresh

    @contextmanager
    def _restore_on_failure(self) -> Iterator[None]:
        before = {name: tensor.clone() for name, tensor in self.method.state().items()}
        task_sizes, table, evidence = list(self.method.task_sizes), self.table.copy(), list(self.evidence)
        history, num_calls, calibration = list(self.history), self.num_calls, self.calibration
        try:
            yield
        except BaseException:
            self.table, self.history, self.num_calls = table, history, num_calls
            self.calibration, self.evidence = calibration, evidence
            self._rebuild_method(task_sizes, before)
            raise

    # -- checks and indices ----------------------------------------------------------------------------------------------------

    def _require_classes(self) -> None:
        if not self.classes:
            raise InputError("this model has not learned any class yet; call learn first")

    def require_learning_state(self) -> None:
        """Raise `InputError` for a model that was published without what learning needs."""
        if self.method.removed_state:
            raise InputError(
                "this model was published without the sums and class means that learning needs, so it can only predict; "
                "learn with the original, or publish it again with with_sums=True"
            )

    def _outputs(self, samples: Samples) -> list[int]:
        """Return the method's output for the class of each image, for learning."""
        first = self.table.first_outputs()
        return [first[target] for target in self._targets(samples)]

    def _targets(self, samples: Samples) -> list[int]:
        """Return the index of each image's class."""
        indices = {name: index for index, name in enumerate(self.classes)}
        return [indices[label] for label in samples.labels]

    # -- saving and loading ----------------------------------------------------------------------------------------------------

    def save(self, folder: str | Path, *, keep_versions: int = NUM_VERSIONS) -> None:
        """Write the model: a few small files, replaced together or not at all. The backbone is named, not copied.

        `keep_versions` earlier versions are kept in the folder, for `undo`.
        """
        folder = expand_user(folder)
        check_local_folder(folder)
        with checkpoint.lock_folder(folder):
            self.save_locked(folder, keep_versions)

    def save_locked(self, folder: Path, keep_versions: int) -> None:
        """Write the model to a folder whose lock the caller holds."""
        self._identity = self._write(folder, None, {}, keep_versions)

    def _write(
        self,
        folder: Path,
        progress: Mapping[str, Any] | None,
        optimizer_tensors: Mapping[str, Tensor],
        keep_versions: int = 0,
    ) -> str:
        return checkpoint.write(folder, self._make_saved(progress, optimizer_tensors), num_versions=keep_versions)

    def _make_saved(self, progress: Mapping[str, Any] | None, optimizer_tensors: Mapping[str, Tensor]) -> checkpoint.Saved:
        config = {**self._config(), "lessons": self.lessons, "calibration": self.calibration.as_dict(), "progress": progress}
        tensors = {
            **{f"method.{name}": tensor for name, tensor in self.method.state().items()},
            **{f"optimizer.{name}": tensor for name, tensor in optimizer_tensors.items()},
        }
        classes = self.table.as_entries(self.method.task_of_class.tolist())
        records = {**self.table.as_tensors(), **dump_evidence(self.evidence)}
        return checkpoint.Saved(config, classes, tensors, self.history, records)

    def _config(self) -> dict[str, Any]:
        return {
            "method": self.method.name,
            "options": self.method.options.model_dump(mode="json"),
            "backbone": {"name": self.backbone.name, "path": str(self.backbone.path), "sha256": self.backbone.sha256},
            "seed": self.seed,
            "task_sizes": self.method.task_sizes,
            "calls": self.num_calls,
            **({"removed": sorted(self.method.removed_state)} if self.method.removed_state else {}),
        }

    @classmethod
    def load(cls, folder: str | Path, *, backbone: str | Path | None = None, device: str = "auto") -> Self:
        """Load a saved model from a folder, or from the Hugging Face hub as `hf:owner/name` or `hf:owner/name@revision`.

        `backbone` is the path of the backbone's weights file, if it was moved.
        """
        folder = Path(folder)
        if not checkpoint.exists(folder) and checkpoint.exists(folder / IN_PROGRESS):
            raise ModelFolderError(f"learning was stopped before '{folder}' held a finished model; continue it with resume=True")
        saved = checkpoint.read(hub.download_reference(str(folder)) if hub.is_reference(folder) else folder)
        config = saved.config
        weights = load_saved_backbone(config["backbone"], folder, backbone)
        own_device = resolve_device(device)
        with explain_damage(folder):
            options = get_options_for_device(own_device, config)
            model = cls(config["method"], weights, seed=config["seed"], device=device, **options)
            model._restore(saved)
        model._identity = saved.identity
        return model

    @classmethod
    def load_stopped(cls, folder: str | Path, *, backbone: str | Path | None = None, device: str = "auto") -> Self | None:
        """Return the model, still without classes, whose very first call was stopped in this folder; `learn` with `resume=True`.

        `backbone` is the path of the backbone's weights file, if it was moved.
        """
        folder = Path(folder)
        if checkpoint.exists(folder) or not checkpoint.exists(folder / IN_PROGRESS):
            return None
        config = checkpoint.read_config(folder / IN_PROGRESS)
        weights = load_saved_backbone(config["backbone"], folder, backbone)
        with explain_damage(folder):
            return cls(config["method"], weights, seed=config["seed"], device=device, **get_saved_options(config))

    def _restore(self, saved: checkpoint.Saved) -> None:
        self.table = ClassTable.from_saved(saved.classes, saved.config.get("lessons", ()), saved.records)
        self.calibration = Calibration.from_dict(saved.config.get("calibration", {}))
        self.evidence = load_evidence(saved.records)
        self.history = [dict(record) for record in saved.metrics]
        self.num_calls = saved.config["calls"]
        self.method.removed_state = frozenset(saved.config.get("removed", ()))
        task_sizes, state = saved.config["task_sizes"], select_by_prefix(saved.tensors, "method.")
        check_growth(self._build_method, task_sizes, state)
        self._rebuild_method(task_sizes, state)
        check_dtypes(self.method, state)
        check_removed(self.method)

    def _restore_stopped_call(self, directory: Path | None, digest: str) -> checkpoint.Saved | None:
        """Restore the checkpoint of a stopped call, if there is one for this model and these images."""
        saved = read_stopped_call(directory, self._config(), digest) if directory is not None else None
        if directory is not None and saved is not None:
            with explain_damage(directory / IN_PROGRESS):
                self._restore(saved)
        return saved


def check_local_folder(folder: Path) -> None:
    """Refuse to write a model to the hub, or among photos or other files that are not its own."""
    hub.check_local(folder)
    foreign = find_foreign_file(folder)
    if foreign is not None:
        raise ModelFolderError(f"'{folder}' is not a model but holds other files, such as '{foreign.name}'; choose another folder")
