"""The models that a server serves: each is loaded once, read by many threads, and replaced as a whole when it has changed."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from caprompt import checkpoint
from caprompt.checkpoint.model import IN_PROGRESS, find_foreign_file
from caprompt.classifier import ContinualClassifier
from caprompt.classifier.info import ModelInfo, measure_files
from caprompt.classifier.state import check_local_folder
from caprompt.data.transforms import render
from caprompt.engine.inference import PredictorCache, choose_batch_size
from caprompt.engine.inputs import InputPipeline
from caprompt.errors import CapromptError, InputError
from caprompt.methods.base import MethodOutput
from caprompt.protocols import is_released
from caprompt.serve.decoding import decode_untrusted
from caprompt.serve.problems import Problem
from caprompt.serve.settings import Settings
from caprompt.serve.state_folder import (
    STATE_FOLDER,
    check_model_name,
    find_state_folder,
    has_work,
    hold_server_lock,
    make_model_name,
)
from caprompt.utils.files import get_current_path
from caprompt.utils.paths import expand_user

__all__ = ["LoadedModel", "ModelCollection", "ServedModel"]

log = logging.getLogger(__name__)


@dataclass(frozen=True, eq=False)
class LoadedModel:
    """A version of a model in memory. It never changes: an edit or a lesson makes another one."""

    classifier: ContinualClassifier
    info: ModelInfo
    pipeline: InputPipeline
    predictors: PredictorCache

    @classmethod
    def wrap(cls, classifier: ContinualClassifier, folder: Path) -> LoadedModel:
        """Take in a model that was loaded from a folder or has just been saved to it."""
        versions = len(checkpoint.list_versions(folder))
        info = replace(classifier.info(), folder=str(folder), files=measure_files(folder), versions=versions)
        return cls(classifier, info, InputPipeline(classifier.backbone, classifier.device, cache_bytes=0), PredictorCache())

    def prepare(self, content: bytes, max_pixels: int) -> NDArray[Any]:
        """Decode an image file for `compute_output`; threads may do so at the same time.

        Without a GPU this is all that precedes the network (3, S, S), else only the pixels (H, W, 3).
        """
        shrink_to = self.pipeline.cache.shrink_to
        assert shrink_to is not None
        pixels = decode_untrusted(content, max_pixels, shrink_to)
        if self.pipeline.batched:
            return pixels
        transform = self.pipeline.make_eval_transform(self.classifier.method.input_options)
        return render(pixels, transform.make_view(pixels.shape[1], pixels.shape[0]), transform)

    def compute_output(self, prepared: Sequence[NDArray[Any]]) -> MethodOutput:
        """Return the calibrated output for prepared images, in their order; one thread at a time."""
        method = self.classifier.method
        size = 1 if is_released(method.options) else choose_batch_size(len(prepared), None, self.classifier.device)
        predictor = self.predictors.get(method, size)
        outputs = [predictor(batch) for batch in self._make_batches(prepared, size)]
        joined = (torch.cat([getattr(output, name) for output in outputs]).cpu() for name in ("logits", "task_weights", "passes"))
        return self.classifier.convert_output(MethodOutput(*joined))

    def _make_batches(self, prepared: Sequence[NDArray[Any]], size: int) -> Iterator[torch.Tensor]:
        if self.pipeline.batched:
            yield from self.pipeline.eval_images(prepared, self.classifier.method.input_options, size)
        else:
            for start in range(0, len(prepared), size):
                yield torch.from_numpy(np.stack(prepared[start : start + size]))


class ServedModel:
    """A model folder under a name, with its current version in memory, if there is one yet."""

    def __init__(self, name: str, folder: Path, state: Path, device: str) -> None:
        self.name = name
        self.folder = folder
        self.state = state  # folder of what the server keeps of it
        self.device = device
        self.loaded: LoadedModel | None = None
        self.changing = asyncio.Lock()  # held by edits and by the start and end of jobs
        self._loading = threading.Lock()

    @property
    def identity(self) -> str | None:
        """The hash that identifies the version in memory."""
        return self.loaded.classifier.identity if self.loaded else None

    def reload(self) -> LoadedModel | None:
        """Load the current version of the folder, unless it is loaded; predictions go on from the one before meanwhile."""
        with self._loading:
            if not checkpoint.exists(self.folder):
                self.loaded = None
            elif self.loaded is None or self.loaded.classifier.identity != checkpoint.read_identity(self.folder):
                self.loaded = LoadedModel.wrap(ContinualClassifier.load(self.folder, device=self.device), self.folder)
            return self.loaded

    def adopt(self, classifier: ContinualClassifier) -> None:
        """Take in the version that an edit has just saved, which needs not be loaded once more."""
        with self._loading:
            self.loaded = LoadedModel.wrap(classifier, self.folder)

    def require_loaded(self) -> LoadedModel:
        """Return the current version; a model that has learned nothing yet is a refusal."""
        if self.loaded is None:
            raise Problem(409, f"the model '{self.name}' has not learned any class yet; teach it first")
        return self.loaded

    def read_stamp(self) -> tuple[int, int, int] | None:
        """Return what changes with every new version, at the cost of one look at a file."""
        try:
            status = get_current_path(self.folder, checkpoint.CONFIG).stat()
        except OSError:
            return None
        return status.st_mtime_ns, status.st_size, status.st_ino


class ModelCollection:
    """The models of a server by name; it is the only server of each."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.folder = expand_user(settings.folder).absolute()
        self.models: dict[str, ServedModel] = {}
        self._locks: dict[str, ExitStack] = {}  # by model
        self._left_out: set[Path] = set()

    def open(self) -> None:
        """Lock and load every model; raise if one is served already, or if a single one cannot be loaded."""
        try:
            for folder in self._list_folders():
                self._include(folder)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Let other servers have the models."""
        while self._locks:  # the first one has made the folder of all, and deletes it last
            self._locks.popitem()[1].close()

    def get(self, name: str) -> ServedModel:
        """Return a model by its name; an invalid or unknown one is a refusal."""
        try:
            check_model_name(name)
        except InputError as error:
            raise Problem(422, str(error)) from error
        if name not in self.models:
            raise Problem(404, f"there is no model '{name}' here")
        return self.models[name]

    def create(self, name: str) -> ServedModel:
        """Add a model that has learned nothing yet."""
        if not self.settings.many:
            raise Problem(409, "this server serves one model; to make others, start 'caprompt serve --models FOLDER'")
        try:
            check_model_name(name)
        except InputError as error:
            raise Problem(422, str(error)) from error
        folder = self.folder / name
        try:
            if name.lower() in (other.lower() for other in list(self.models)) or _is_taken(folder):
                raise Problem(409, f"there is a model '{name}' already; choose another name")
            return self._add(name, folder)
        except (OSError, InputError) as error:
            raise Problem(409, str(error)) from error

    def find_new(self) -> None:
        """Add models that have appeared in the folder since; those of another server are left to it."""
        known = {model.folder for model in list(self.models.values())}
        for folder in self._list_folders():
            if folder not in known and make_model_name(folder) not in self.models:
                with suppress(InputError):
                    self._include(folder)

    def _list_folders(self) -> list[Path]:
        if not self.settings.many:
            check_local_folder(self.folder)
            return [self.folder]
        self.folder.mkdir(parents=True, exist_ok=True)
        states = self.folder / STATE_FOLDER  # also of models whose first lesson was interrupted, which may have no folder yet
        names = {path.name for folder in (self.folder, states) if folder.is_dir() for path in folder.iterdir()}
        return [self.folder / name for name in sorted(names) if not name.startswith(".") and self._is_served(self.folder / name)]

    def _is_served(self, folder: Path) -> bool:
        try:
            found = _is_model(folder) or (has_work(find_state_folder(folder)) and not _is_taken(folder))
            if found:
                make_model_name(folder)
        except (OSError, InputError) as error:
            self._leave_out(folder, error)
            return False
        return found

    def _include(self, folder: Path) -> None:
        """Add and load a model; one of many that cannot be read is left out."""
        try:
            self._add(make_model_name(folder), folder)
        except _UnreadableError as error:
            self._leave_out(folder, error.reason)
        except OSError as error:
            self._leave_out(folder, error)

    def _leave_out(self, folder: Path, error: Exception) -> None:
        """Say once why a folder is not served; raise if it is the only one."""
        if not self.settings.many:
            raise error
        if folder not in self._left_out:
            self._left_out.add(folder)
            log.warning("'%s' is not served: %s", folder, error)

    def _add(self, name: str, folder: Path) -> ServedModel:
        if name in self.models:
            raise InputError(f"'{self.models[name].folder}' and '{folder}' would both be served as '{name}'; rename one of them")
        with ExitStack() as lock:
            state = lock.enter_context(hold_server_lock(folder))
            model = ServedModel(name, folder, state, self.settings.device)
            try:
                model.reload()
            except (OSError, CapromptError) as error:
                raise _UnreadableError(error) from error
            self._locks[name] = lock.pop_all()
        self.models[name] = model
        return model


class _UnreadableError(Exception):
    """A model could be locked but not loaded."""

    def __init__(self, reason: Exception) -> None:
        super().__init__(str(reason))
        self.reason = reason


def _is_model(folder: Path) -> bool:
    return checkpoint.exists(folder) or checkpoint.exists(folder / IN_PROGRESS)


def _is_taken(folder: Path) -> bool:
    """Return whether no new model can be made in a folder; one that a stopped lesson has left empty can be used."""
    return _is_model(folder) or find_foreign_file(folder) is not None or (folder.exists() and not folder.is_dir())
