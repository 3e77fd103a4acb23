"""Routes for models and their classes: what they hold, edits, and downloads."""

from __future__ import annotations

import asyncio
import os
import tempfile
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import IO, Annotated, Any, Literal
from urllib.parse import quote

from fastapi import APIRouter, Query
from fastapi.responses import FileResponse, Response, StreamingResponse

from caprompt import __version__, checkpoint
from caprompt.classifier import ContinualClassifier, editing
from caprompt.classifier.prediction import FALSE_ALARMS
from caprompt.serve.api_common import Model, Server
from caprompt.serve.problems import Problem, refuse
from caprompt.serve.schemas import (
    ClassEntry,
    ClassName,
    ForgetRequest,
    Health,
    JoinRequest,
    ModelDetails,
    ModelRequest,
    ModelSummary,
    RenameRequest,
)
from caprompt.serve.served_models import ServedModel
from caprompt.serve.service import Service

__all__ = ["router"]

router = APIRouter()
CHUNK = 1 << 18  # bytes of a download that are read at once


@router.get("/health", response_model=Health)
async def health(service: Server) -> dict[str, Any]:
    """Return whether the server works; this needs no token."""
    models = len(service.collection.models)
    return {"status": "ok", "version": __version__, "models": models, "can_create": service.settings.many}


@router.get("/models", response_model=list[ModelSummary])
async def list_models(service: Server) -> list[dict[str, Any]]:
    """List the models of this server."""
    return [_summarize(service, model) for model in list(service.collection.models.values())]


@router.post("/models", status_code=201, response_model=ModelSummary)
async def create_model(service: Server, body: ModelRequest) -> dict[str, Any]:
    """Add a model, which the first lesson then makes; only on a server of a folder of models."""
    return _summarize(service, await asyncio.to_thread(service.collection.create, body.name))


@router.get("/models/{model}", response_model=ModelDetails)
async def show_model(service: Server, model: Model) -> dict[str, Any]:
    """Return everything about a model but its classes."""
    return await asyncio.to_thread(_describe, service, model)


@router.get("/models/{model}/classes", response_model=list[ClassEntry])
async def list_classes(service: Server, model: Model) -> list[dict[str, Any]]:
    """List the classes of a model, in the order in which they were learned."""
    if model.loaded is None:
        return []
    info, thumbnails = model.loaded.info, service.thumbnails(model)
    first: dict[str, int] = {}
    for index, lesson in enumerate(info.lessons):
        for name in lesson.get("classes", ()):
            first.setdefault(name, index)
    return [
        {
            "name": each.name,
            "images": each.images,
            "learned": each.first,
            "lesson": first.get(each.name),
            "thumbnail": f"/api/v1/models/{model.name}/thumbnail?name={quote(each.name)}" if thumbnails.find(each.name) else None,
        }
        for each in info.classes
    ]


@router.get("/models/{model}/thumbnail", response_class=FileResponse)
async def show_thumbnail(service: Server, model: Model, name: Annotated[ClassName, Query()]) -> FileResponse:
    """Return a picture of a class; there are some only if the server was started with --keep-thumbnails."""
    path = service.thumbnails(model).find(name)
    if path is None:
        raise Problem(404, "there is no picture of this class")
    return FileResponse(path, media_type="image/webp")


@router.post("/models/{model}/undo", response_model=ModelDetails)
async def undo(service: Server, model: Model) -> dict[str, Any]:
    """Undo the last lesson or edit; a lesson that was interrupted is discarded instead."""
    await service.undo(model)
    return await asyncio.to_thread(_describe, service, model)


@router.post("/models/{model}/rename", response_model=ModelDetails)
async def rename(service: Server, model: Model, body: RenameRequest) -> dict[str, Any]:
    """Give a class another name."""

    def change(folder: Path) -> ContinualClassifier:
        changed = editing.rename(folder, body.old, body.new)
        service.thumbnails(model).rename(body.old, body.new)
        return changed

    await service.edit(model, change)
    return await asyncio.to_thread(_describe, service, model)


@router.post("/models/{model}/join", response_model=ModelDetails)
async def join(service: Server, model: Model, body: JoinRequest) -> dict[str, Any]:
    """Make one class of several."""
    await service.edit(model, lambda folder: editing.join(folder, body.names, body.into))
    return await asyncio.to_thread(_describe, service, model)


@router.post("/models/{model}/forget", response_model=ModelDetails)
async def forget(service: Server, model: Model, body: ForgetRequest) -> dict[str, Any]:
    """Remove a class and every trace of it; this cannot be undone."""
    await service.forget(model, body.name, body.approximate)
    return await asyncio.to_thread(_describe, service, model)


@router.get("/models/{model}/download", response_class=Response, responses={200: {"content": {"application/zip": {}}}})
async def download(
    service: Server, model: Model, format: Annotated[Literal["model", "onnx", "browser"], Query()] = "model"
) -> Response:
    """Return the model folder, or what an export job has written, as a zip file."""
    model.require_loaded()
    service.admit()
    try:
        file = await asyncio.to_thread(_zip_model if format == "model" else _zip_export, model, format)
    finally:
        service.release()
    name = f"{model.name}.zip" if format == "model" else f"{model.name}-{format}.zip"
    headers = {"Content-Disposition": f'attachment; filename="{name}"', "Content-Length": str(os.fstat(file.fileno()).st_size)}
    return StreamingResponse(_read_chunks(file), media_type="application/zip", headers=headers)


def _read_chunks(file: IO[bytes]) -> Iterator[bytes]:
    with file:
        file.seek(0)
        while chunk := file.read(CHUNK):
            yield chunk


def _zip_model(model: ServedModel, format: str) -> IO[bytes]:
    """Pack the current version of a model, without earlier ones, all files of one version; writers need not wait for it."""

    def write(files: Iterator[tuple[str, bytes]]) -> IO[bytes]:
        return _zip(model, ((f"{model.name}/{name}", content) for name, content in files))

    with refuse(409, model.folder, model.name):
        return checkpoint.visit_files(model.folder, write)


def _zip_export(model: ServedModel, format: str) -> IO[bytes]:
    path = model.state / "exports" / (f"{model.name}.onnx" if format == "onnx" else f"{model.name}-page")
    if not path.exists():
        raise Problem(404, f"there is no export of this version of '{model.name}'; start a job of kind 'export' first")
    files = [path] if path.is_file() else sorted(each for each in path.rglob("*") if each.is_file())
    return _zip(model, ((str(each.relative_to(path.parent)), each.read_bytes()) for each in files))


def _zip(model: ServedModel, files: Iterator[tuple[str, bytes]]) -> IO[bytes]:
    """Return a file without a name, on the disk of the model: it is gone as soon as it is closed."""
    with ExitStack() as stack:
        file = stack.enter_context(tempfile.TemporaryFile(dir=model.state))
        with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
            for name, content in files:
                archive.writestr(name, content)
        file.flush()
        stack.pop_all()
        return file


def _summarize(service: Service, model: ServedModel) -> dict[str, Any]:
    job = service.jobs(model).find_open()
    info = model.loaded.info if model.loaded else None
    return {
        "name": model.name,
        "classes": len(info.classes) if info else 0,
        "images": info.images if info else 0,
        "lessons": len(info.lessons) if info else 0,
        "method": info.method if info else service.settings.method,
        "backbone": info.backbone["name"] if info else str(service.settings.backbone),
        "bytes": info.bytes if info else 0,
        "job": job.id if job else None,
        "busy": job is not None and job.is_active,
    }


def _describe(service: Service, model: ServedModel) -> dict[str, Any]:
    loaded, limits = model.loaded, service.settings.limits
    classifier = loaded.classifier if loaded else None
    info = loaded.info if loaded else None
    is_calibrated = classifier is not None and bool(classifier.calibration.images)
    lessons = list(info.lessons) if info else []
    can_undo = info is not None and (
        info.versions > 0 or (len(lessons) == 1 and classifier is not None and classifier.num_calls == 1)
    )
    return {
        **_summarize(service, model),
        "can_undo": can_undo,
        "can_learn": classifier is None or not classifier.method.removed_state,
        "false_alarm_rate": FALSE_ALARMS if is_calibrated else None,
        "coverage": is_calibrated,
        "image_size": classifier.backbone.config.image_size if classifier else None,
        "lessons": [_describe_lesson(lesson) for lesson in lessons],
        "parts": [{"name": name, "bytes": size} for name, size in info.files.items()] if info else [],
        "keeps": list(info.kept) if info else [],
        "limits": {"body_bytes": limits.body_bytes, "images": limits.images, "pixels": limits.pixels},
    }


def _describe_lesson(lesson: Mapping[str, Any]) -> dict[str, Any]:
    named = [lesson["from"]] if isinstance(lesson.get("from"), str) else list(lesson.get("from", ()))
    classes = list(lesson.get("classes", ())) or [*named, *([lesson["to"]] if "to" in lesson else [])]
    images = lesson.get("images", sum(entry["images"] for entry in lesson.get("classes", {}).values()))
    return {
        "when": lesson.get("date", ""),
        "what": lesson["kind"],
        "classes": classes,
        "images": images,
        "seconds": lesson.get("seconds"),
        "settings": dict(lesson.get("settings", {})),
    }
