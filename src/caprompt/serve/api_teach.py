"""Routes for teaching: uploads of images under class names, and jobs."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request
from fastapi.responses import Response, StreamingResponse

from caprompt.classifier.class_table import DIGEST_BYTES
from caprompt.errors import DataError, InputError
from caprompt.serve.api_common import Model, Server
from caprompt.serve.api_predict import IMAGE_BODY, SentImage, read_sent_images
from caprompt.serve.decoding import decode_untrusted
from caprompt.serve.jobs import Job
from caprompt.serve.problems import Problem
from caprompt.serve.schemas import ClassName, JobReply, JobRequest, UploadChange, UploadReply
from caprompt.serve.served_models import ServedModel
from caprompt.serve.service import Service
from caprompt.serve.uploads import FROZEN, FileProblem, Upload, clean_label

__all__ = ["router"]

router = APIRouter()
CHECK_SIDE = 64  # pixels that images are reduced to when they are checked
Label = Annotated[ClassName, Query(description="Name of the class.")]


# -- uploads -------------------------------------------------------------------------------------------------------------------


@router.post("/models/{model}/uploads", status_code=201, response_model=UploadReply)
async def create_upload(service: Server, model: Model) -> dict[str, str]:
    """Make a place for images that are to be taught; it expires after a day."""
    try:
        upload = await asyncio.to_thread(service.uploads(model).create)
    except InputError as error:
        raise Problem(429, str(error), {"Retry-After": "60"}) from error
    return {"id": upload.identifier}


@router.get("/models/{model}/uploads/{upload}", response_model=UploadChange)
async def show_upload(service: Server, model: Model, upload: str) -> dict[str, Any]:
    """Return what an upload holds, and the problems and warnings so far."""
    found = service.find_upload(model, upload)
    return _describe_upload(model, found, 0, found.problems)


@router.delete("/models/{model}/uploads/{upload}", status_code=204)
async def delete_upload(service: Server, model: Model, upload: str) -> Response:
    """Delete an upload and its images."""
    _refuse_in_use(service, model, upload)
    service.find_upload(model, upload)
    await asyncio.to_thread(service.uploads(model).remove, upload)
    return Response(status_code=204)


@router.post("/models/{model}/uploads/{upload}/images", response_model=UploadChange, openapi_extra=IMAGE_BODY)
async def add_images(request: Request, service: Server, model: Model, upload: str, label: Label) -> dict[str, Any]:
    """Add images of a class: a form with files in the field `images`, or one image file as the body."""
    found = service.find_upload(model, upload)
    _refuse_in_use(service, model, upload)
    name = _clean(label)
    images, _ = await read_sent_images(request, service.settings.limits.images)
    service.admit()
    try:
        results = await service.map_images(lambda image: _stage(service, model, found, name, image), images)
    except InputError as error:  # a job has started meanwhile
        raise Problem(409, str(error)) from error
    finally:
        service.release()
    problems = [result for result in results if result is not None]
    return _describe_upload(model, found, len(images) - len(problems), problems)


@router.delete("/models/{model}/uploads/{upload}/images", response_model=UploadChange)
async def remove_images(service: Server, model: Model, upload: str, label: Label) -> dict[str, Any]:
    """Remove the images of a class from an upload."""
    found = service.find_upload(model, upload)
    _refuse_in_use(service, model, upload)
    name = _clean(label)
    try:
        await asyncio.to_thread(found.remove_class, name)
    except InputError as error:  # a job has started meanwhile
        raise Problem(409, str(error)) from error
    return _describe_upload(model, found, 0, found.problems)


def _stage(service: Service, model: ServedModel, upload: Upload, label: str, image: SentImage) -> FileProblem | None:
    def check(content: bytes) -> object:
        return decode_untrusted(content, service.settings.limits.pixels, CHECK_SIDE)

    def is_learned(digest: bytes, name: str) -> bool:
        if model.loaded is None:
            return False
        table = model.loaded.classifier.table
        output = table.digests.get(digest[:DIGEST_BYTES])
        return output is not None and table.output_names[output] == name

    return upload.add(label, image.name or "image", image.content, check, is_learned)


def _clean(label: str) -> str:
    try:
        return clean_label(label)
    except DataError as error:
        raise Problem(422, str(error)) from error


def _refuse_in_use(service: Service, model: ServedModel, upload: str) -> None:
    job = service.jobs(model).find_open()
    if job is not None and job.request.get("upload") == upload:
        raise Problem(409, FROZEN)


def _describe_upload(model: ServedModel, upload: Upload, accepted: int, problems: list[FileProblem]) -> dict[str, Any]:
    known: Mapping[str, int] = model.loaded.classifier.images_seen if model.loaded else {}
    return {
        "accepted": accepted,
        "classes": [{"name": name, "images": count, "known": name in known} for name, count in upload.count().items()],
        "problems": [asdict(problem) for problem in problems],
        "warnings": upload.list_warnings(known),
    }


# -- jobs ----------------------------------------------------------------------------------------------------------------------


@router.post("/models/{model}/jobs", status_code=202, response_model=JobReply)
async def create_job(service: Server, model: Model, body: JobRequest) -> dict[str, Any]:
    """Start a job: learn or evaluate an upload, or export the model. A model has one at a time."""
    if body.kind == "export":
        model.require_loaded()
        request = _describe_export(service, model, body.format)
    else:
        request = _describe_images(service, model, body)
    return (await service.start_job(model, body.kind, request)).describe()


@router.get("/models/{model}/jobs", response_model=list[JobReply])
async def list_jobs(service: Server, model: Model) -> list[dict[str, Any]]:
    """List the jobs of a model, the newest last."""
    return [job.describe() for job in service.jobs(model).jobs.values()]


@router.get("/models/{model}/jobs/{job}", response_model=JobReply)
async def show_job(service: Server, model: Model, job: str) -> dict[str, Any]:
    """Return how far a job is, or its result."""
    return service.find_job(model, job).describe()


@router.delete("/models/{model}/jobs/{job}", response_model=JobReply)
async def cancel_job(service: Server, model: Model, job: str) -> dict[str, Any]:
    """Cancel a job; the model is then as it was before it."""
    found = service.find_job(model, job)
    await service.cancel_job(model, found)
    return found.describe()


@router.post("/models/{model}/jobs/{job}/resume", status_code=202, response_model=JobReply)
async def resume_job(service: Server, model: Model, job: str) -> dict[str, Any]:
    """Go on with a job that the end of a server interrupted."""
    found = service.find_job(model, job)
    await service.resume_job(model, found)
    return found.describe()


@router.get(
    "/models/{model}/jobs/{job}/events",
    response_class=StreamingResponse,
    responses={200: {"content": {"text/event-stream": {}}, "description": "Events `progress`, and a last one `end`."}},
)
async def watch_job(service: Server, model: Model, job: str) -> StreamingResponse:
    """Send the job as an event after every change, until it has ended."""
    return StreamingResponse(_make_events(service.find_job(model, job)), media_type="text/event-stream")


async def _make_events(job: Job) -> AsyncIterator[str]:
    async for each in job.watch():
        name = "progress" if each.is_active else "end"
        yield f"event: {name}\ndata: {json.dumps(each.describe())}\n\n"


def _describe_images(service: Service, model: ServedModel, body: JobRequest) -> dict[str, Any]:
    if body.upload is None:
        raise Problem(422, f"a job of kind '{body.kind}' needs an upload; make one, and put images into it")
    upload = service.find_upload(model, body.upload)
    if not upload.images:
        raise Problem(422, "this upload has no images yet; put some into it first")
    if body.kind == "evaluate":
        model.require_loaded()
    elif model.loaded is not None and model.loaded.classifier.method.removed_state:
        raise Problem(409, f"'{model.name}' was published without what learning needs, so it can only predict")
    return {"upload": upload.identifier, "upload_folder": str(upload.folder), "hold_out": body.hold_out}


def _describe_export(service: Service, model: ServedModel, format: str) -> dict[str, Any]:
    runtime: Path | None = service.settings.runtime
    target = model.state / "exports" / (f"{model.name}.onnx" if format == "onnx" else f"{model.name}-page")
    return {"format": format, "target": str(target), "runtime": None if runtime is None else str(runtime)}
