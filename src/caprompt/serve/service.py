"""What the routes of a server share: its models, their uploads and jobs, the batcher, and the threads that decode images."""

from __future__ import annotations

import asyncio
import logging
import shutil
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

from caprompt import checkpoint
from caprompt.checkpoint.model import IN_PROGRESS, has_stopped_call
from caprompt.classifier import ContinualClassifier, editing
from caprompt.data.class_names import normalize_class_name
from caprompt.errors import CapromptError, InputError
from caprompt.serve.batching import Batcher
from caprompt.serve.jobs import ENDED, Job, JobStore, run_worker
from caprompt.serve.metrics import ServerMetrics
from caprompt.serve.problems import Problem, name_folder, refuse
from caprompt.serve.served_models import ModelCollection, ServedModel
from caprompt.serve.settings import Settings
from caprompt.serve.thumbnails import ThumbnailStore
from caprompt.serve.uploads import Upload, UploadStore
from caprompt.serve.worker import read_images, split_held_out
from caprompt.utils.cores import count_cores
from caprompt.utils.devices import resolve_device

__all__ = ["Service"]

log = logging.getLogger(__name__)
T = TypeVar("T")
Item = TypeVar("Item")
RELOAD_INTERVAL = 2.0  # seconds between two looks at the model folders
CLEAN_INTERVAL = 600.0  # seconds between two looks at old uploads
FAILURE = "the job ended unexpectedly (status {status}); the server's log says why"


class Service:
    """A running server, apart from HTTP."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.metrics = ServerMetrics()
        self.collection = ModelCollection(settings)
        self.num_decoders = count_cores()
        self.decoders = ThreadPoolExecutor(self.num_decoders, thread_name_prefix="caprompt-decode")
        self.batcher = Batcher(self.metrics.add_batch)
        self.in_flight = 0  # requests whose images are being worked on
        self.stopping = asyncio.Event()
        self._uploads: dict[str, UploadStore] = {}
        self._jobs: dict[str, JobStore] = {}
        self._thumbnails: dict[str, ThumbnailStore] = {}
        self._background: list[asyncio.Task[None]] = []
        self._running = 0

    # -- start and end ---------------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Begin what runs beside requests."""
        self._background.append(asyncio.create_task(self._clean_regularly()))
        if self.settings.reload_models:
            self._background.append(asyncio.create_task(self._reload_regularly()))

    async def stop(self) -> None:
        """End jobs so that they can be resumed; predictions in flight go on."""
        self.stopping.set()
        for task in self._background:
            task.cancel()
        running = [
            job for store in self._jobs.values() for job in store.jobs.values() if job.task is not None and not job.task.done()
        ]
        for job in running:
            job.kill()
        await asyncio.gather(*(job.task for job in running if job.task is not None), return_exceptions=True)

    def close(self) -> None:
        """Finish predictions, and let other servers have the models."""
        self.batcher.close()
        self.decoders.shutdown()
        self.collection.close()

    async def _clean_regularly(self) -> None:
        while True:
            for model in list(self.collection.models.values()):
                try:
                    in_use = [job.request.get("upload", "") for job in self.jobs(model).jobs.values() if job.state not in ENDED]
                    await asyncio.to_thread(self.uploads(model).remove_expired, in_use)
                except Exception:  # the next look may do better
                    log.exception("old uploads of '%s' could not be deleted", model.name)
            await asyncio.sleep(CLEAN_INTERVAL)

    async def _reload_regularly(self) -> None:
        """Take in models that were taught elsewhere."""
        stamps = {model.name: model.read_stamp() for model in list(self.collection.models.values())}
        while True:
            await asyncio.sleep(RELOAD_INTERVAL)
            try:
                if self.settings.many:
                    await asyncio.to_thread(self.collection.find_new)
                for model in list(self.collection.models.values()):
                    stamp = model.read_stamp()
                    if stamp != stamps.get(model.name):
                        with suppress(CapromptError):  # it is being written; the next look sees the rest
                            await self._reload(model)
                            stamps[model.name] = stamp
            except Exception:  # the next look may do better
                log.exception("models that were taught elsewhere could not be taken in")

    async def _reload(self, model: ServedModel) -> None:
        """Load the current version of a model, and remove what belonged to the one before, if it is another."""
        before = model.identity
        await asyncio.to_thread(model.reload)
        if model.identity != before:
            self._tidy(model)

    # -- parts of a model ------------------------------------------------------------------------------------------------------

    def uploads(self, model: ServedModel) -> UploadStore:
        """Return the uploads of a model."""
        if model.name not in self._uploads:
            self._uploads[model.name] = UploadStore(model.state / "uploads")
        return self._uploads[model.name]

    def jobs(self, model: ServedModel) -> JobStore:
        """Return the jobs of a model."""
        if model.name not in self._jobs:
            self._jobs[model.name] = JobStore(model.state / "jobs")
        return self._jobs[model.name]

    def thumbnails(self, model: ServedModel) -> ThumbnailStore:
        """Return the thumbnails of the classes of a model."""
        if model.name not in self._thumbnails:
            self._thumbnails[model.name] = ThumbnailStore(model.state / "thumbnails")
            if not self.settings.keep_thumbnails:  # though an earlier server may have
                self._thumbnails[model.name].keep_only([])
        return self._thumbnails[model.name]

    def find_upload(self, model: ServedModel, identifier: str) -> Upload:
        """Return an upload of a model, or refuse."""
        try:
            return self.uploads(model).get(identifier)
        except KeyError:
            raise Problem(404, "there is no such upload; it was taught, deleted, or is older than a day") from None

    def find_job(self, model: ServedModel, identifier: str) -> Job:
        """Return a job of a model, or refuse."""
        try:
            return self.jobs(model).jobs[identifier]
        except KeyError:
            raise Problem(404, "there is no such job") from None

    # -- edits -----------------------------------------------------------------------------------------------------------------

    async def edit(self, model: ServedModel, change: Callable[[Path], object]) -> None:
        """Change a model folder by the library's own means, and take in the result."""
        async with model.changing:
            self._refuse_while_running(model)

            def apply() -> None:
                with refuse(409, model.folder, model.name):
                    changed = change(model.folder)
                    if isinstance(changed, ContinualClassifier) and changed.device == resolve_device(model.device):
                        model.adopt(changed)
                    else:
                        model.reload()

            await asyncio.to_thread(apply)
            self._tidy(model)

    async def undo(self, model: ServedModel) -> None:
        """Undo the last change; a lesson that was interrupted is discarded with its job."""
        open_job = self.jobs(model).find_open()
        if open_job is not None and open_job.state == "interrupted" and open_job.kind == "learn":
            with refuse(409, model.folder, model.name):
                identity = await asyncio.to_thread(_read_identity, model.folder)
            if identity == open_job.request["identity"]:  # it has not changed the model yet, so there is nothing else to undo
                await self.cancel_job(model, open_job)
                return
        await self.edit(model, editing.undo)
        if open_job is not None and open_job.state == "interrupted" and not has_stopped_call(model.folder):
            await self._end(model, open_job, state="canceled")

    async def forget(self, model: ServedModel, name: str, approximate: bool) -> None:
        """Remove a class from a model, and from everything that is kept beside it."""

        def change(folder: Path) -> ContinualClassifier:
            changed = editing.forget(folder, name, approximate=approximate, device=self.settings.device)
            self._erase(model, normalize_class_name(name))
            return changed

        await self.edit(model, change)

    def _erase(self, model: ServedModel, name: str) -> None:
        """Remove a class from uploads and from the results of jobs."""
        for upload in list(self.uploads(model).uploads.values()):
            if name in upload.count():
                upload.remove_class(name, even_frozen=True)
        store = self.jobs(model)
        for job in list(store.jobs.values()):
            if _mentions(job.result, name):
                job.result = None
                store.save(job)

    def _refuse_while_running(self, model: ServedModel) -> None:
        job = self.jobs(model).find_open()
        if job is not None and job.is_active:
            raise Problem(409, f"a job of '{model.name}' is running; wait until it has ended, or cancel it")

    def _tidy(self, model: ServedModel) -> None:
        """Remove what belonged to classes or versions that are gone."""
        self.thumbnails(model).keep_only(model.loaded.classifier.classes if model.loaded else [])
        shutil.rmtree(model.state / "exports", ignore_errors=True)

    # -- jobs ------------------------------------------------------------------------------------------------------------------

    async def start_job(self, model: ServedModel, kind: str, request: Mapping[str, Any]) -> Job:
        """Start a job of a model, unless it has one."""
        async with model.changing:
            store = self.jobs(model)
            job = store.find_open()
            if job is not None:
                what = "is running; wait until it has ended" if job.is_active else "was interrupted; resume it"
                raise Problem(409, f"a job of '{model.name}' {what}, or cancel it")
            if kind == "learn" and has_stopped_call(model.folder):
                raise Problem(409, f"a lesson of '{model.name}' was stopped; undo discards it")
            self._refuse_too_many()
            with refuse(409, model.folder, model.name):
                await self._reload(model)  # it may have been taught elsewhere, and canceling must not undo that
            calls = model.loaded.classifier.num_calls if model.loaded else 0
            settings = {"calls": calls, "identity": model.identity, "device": self.settings.device, "new": self._describe_new()}
            upload = self.find_upload(model, request["upload"]) if "upload" in request else None
            if upload is not None:
                await asyncio.to_thread(upload.freeze)
            try:
                job = await asyncio.to_thread(
                    store.create, kind, {**settings, "folder": str(model.folder), "model": model.name, **request}
                )
            except BaseException:
                if upload is not None:
                    upload.frozen = False
                raise
            self._launch(model, job)
            return job

    async def resume_job(self, model: ServedModel, job: Job) -> None:
        """Go on with a job that was interrupted."""
        async with model.changing:
            if job.state != "interrupted":
                raise Problem(409, f"this job is {job.state}; only an interrupted one can be resumed")
            self._refuse_too_many()
            job.update(state="queued", error=None, progress=0.0, first=None, is_killed=False)
            await asyncio.to_thread(self.jobs(model).save, job)
            self._launch(model, job)

    async def cancel_job(self, model: ServedModel, job: Job) -> None:
        """Stop a job; the model is as it was before it."""
        if job.state == "interrupted":
            async with model.changing:
                if job.state != "interrupted":  # any more
                    raise Problem(409, f"this job is {job.state} now; try again")
                with refuse(409, model.folder, model.name):
                    await self._restore(model, job)
                await self._end(model, job, state="canceled")
        elif job.is_active and job.task is not None:
            job.request = {**job.request, "canceled": True}
            job.kill()
            await asyncio.wait([job.task])
        else:
            raise Problem(409, f"this job is {job.state} and cannot be canceled any more")

    def _refuse_too_many(self) -> None:
        if self._running >= self.settings.limits.jobs:
            raise Problem(429, f"{self._running} jobs are running, which is the limit; try again later", {"Retry-After": "10"})

    def _describe_new(self) -> dict[str, Any]:
        return {"method": self.settings.method, "backbone": self.settings.backbone, "options": dict(self.settings.options)}

    def _launch(self, model: ServedModel, job: Job) -> None:
        self._running += 1
        threads = max(1, count_cores() // 2)

        async def finish(job: Job, last: Mapping[str, Any]) -> None:
            await self._finish(model, job, last)

        async def run() -> None:
            try:
                await run_worker(job, self.jobs(model).path(job), threads, finish)
            except Exception as error:
                with suppress(CapromptError):
                    await self._reload(model)
                await self._end(model, job, state="failed", error=f"the job could not be run ({error})")
                raise
            finally:
                self._running -= 1

        job.task = asyncio.create_task(run())

    async def _finish(self, model: ServedModel, job: Job, last: Mapping[str, Any]) -> None:
        """Take in what the process of a job has left."""
        async with model.changing:
            if job.request.get("canceled"):
                await self._restore(model, job)
                await self._end(model, job, state="canceled")
            elif "result" in last:
                await self._reload(model)
                if job.kind == "learn":
                    self._tidy(model)
                    await asyncio.to_thread(self._keep_thumbnails, model, job)
                await self._end(model, job, state="done", progress=1.0, stage="done", result=last["result"])
            elif "error" in last:
                sentence = name_folder(str(last["error"]), model.folder, model.name)
                with suppress(CapromptError):
                    await self._reload(model)  # the error may have come after the lesson
                await self._end(model, job, state="failed", error=sentence)
            else:  # killed: by the end of this server, by a person, or for lack of memory
                await self._reload(model)
                status = job.process.returncode if job.process else None
                await self._end(
                    model, job, state="interrupted", error=None if self.stopping.is_set() else FAILURE.format(status=status)
                )

    async def _end(self, model: ServedModel, job: Job, **values: Any) -> None:
        store = self.jobs(model)
        job.update(**values)
        await asyncio.to_thread(store.save, job)
        self.metrics.add_job(job.kind, job.state)
        if job.state == "done" and job.kind == "learn":  # images are not kept
            await asyncio.to_thread(self.uploads(model).remove, job.request["upload"])
        elif job.state in ENDED and job.request.get("upload") in self.uploads(model).uploads:
            self.uploads(model).get(job.request["upload"]).frozen = False

    async def _restore(self, model: ServedModel, job: Job) -> None:
        """Make a model what it was before a job."""
        if job.kind == "learn":
            await asyncio.to_thread(_revert_lesson, model.folder, job)
        await self._reload(model)

    def _keep_thumbnails(self, model: ServedModel, job: Job) -> None:
        if self.settings.keep_thumbnails:
            with suppress(KeyError, OSError, CapromptError):
                self.thumbnails(model).add_missing(self.uploads(model).get(job.request["upload"]))

    # -- admission -------------------------------------------------------------------------------------------------------------

    def admit(self) -> None:
        """Count a request with images, or refuse it while there are too many."""
        if self.in_flight >= self.settings.limits.in_flight:
            raise Problem(
                503, f"{self.in_flight} requests are being worked on, which is the limit; try again", {"Retry-After": "1"}
            )
        self.in_flight += 1

    def release(self) -> None:
        """Count a request with images as answered."""
        self.in_flight -= 1

    async def map_images(self, function: Callable[[Item], T], images: Sequence[Item]) -> list[T]:
        """Apply a function to images, in the threads that decode them; a request with many lets others have their turn."""
        loop, turns = asyncio.get_running_loop(), asyncio.Semaphore(self.num_decoders)

        async def apply(image: Item) -> T:
            async with turns:
                return await loop.run_in_executor(self.decoders, function, image)

        return list(await asyncio.gather(*map(apply, images)))


def _discard_stopped_call(folder: Path) -> None:
    if checkpoint.exists(folder / IN_PROGRESS):
        with checkpoint.lock_folder(folder):
            checkpoint.discard(folder / IN_PROGRESS)


def _revert_lesson(folder: Path, job: Job) -> None:
    """Discard what a job has in progress, and undo its lesson if that had just ended; others than its own stay."""
    _discard_stopped_call(folder)
    if not checkpoint.exists(folder):
        return
    config = checkpoint.read_config(folder)
    lessons = config.get("lessons", [])
    if config["calls"] == job.request["calls"] + 1 and lessons and _is_lesson_of(job, lessons[-1]):
        editing.undo(folder)


def _is_lesson_of(job: Job, lesson: Mapping[str, Any]) -> bool:
    try:
        taught, _ = split_held_out(read_images(job.request), float(job.request["hold_out"]))
    except InputError:  # the images are gone, so it cannot be told
        return False
    counts = Counter(image["label"] for image in taught)
    return lesson["kind"] == "learn" and {name: entry["images"] for name, entry in lesson["classes"].items()} == counts


def _read_identity(folder: Path) -> str | None:
    return checkpoint.read_identity(folder) if checkpoint.exists(folder) else None


def _mentions(value: Any, name: str) -> bool:
    """Return whether a name is anywhere in a result.

    >>> _mentions({"classes": [{"name": "cat"}]}, "cat"), _mentions({"cat": 1}, "cat"), _mentions({"a": ["cats"]}, "cat")
    (True, True, False)
    """
    if isinstance(value, Mapping):
        return any(_mentions(part, name) for item in value.items() for part in item)
    if isinstance(value, list):
        return any(_mentions(part, name) for part in value)
    return bool(value == name)
