"""The route for predictions, and how images come with a request."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request
from fastapi.responses import JSONResponse
from numpy.typing import NDArray
from python_multipart.exceptions import FormParserError
from starlette.datastructures import UploadFile
from starlette.exceptions import HTTPException

from caprompt.classifier.prediction import FALSE_ALARMS
from caprompt.errors import DataError, first_line
from caprompt.methods.base import MethodOutput
from caprompt.outputs import Prediction, make_predictions
from caprompt.serve.api_common import Model, Server
from caprompt.serve.problems import Problem
from caprompt.serve.schemas import PredictReply
from caprompt.serve.served_models import LoadedModel
from caprompt.serve.service import Service

__all__ = ["IMAGE_BODY", "SentImage", "read_sent_images", "router"]

router = APIRouter()
MAX_TOP = 1000
FORM = {"type": "object", "properties": {"images": {"type": "array", "items": {"type": "string", "format": "binary"}}}}
BINARY = {"schema": {"type": "string", "format": "binary"}}
IMAGE_BODY: dict[str, Any] = {
    "requestBody": {
        "required": True,
        "content": {"multipart/form-data": {"schema": FORM}, "image/*": BINARY, "application/octet-stream": BINARY},
    }
}


@dataclass(frozen=True)
class SentImage:
    """An image file as a client has sent it."""

    name: str
    content: bytes


async def read_sent_images(request: Request, max_images: int) -> tuple[list[SentImage], bool]:
    """Return the images of a request, and whether they came as a form: otherwise the body is one image."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind == "multipart/form-data":
        return await _read_form(request, max_images), True
    if kind and not kind.startswith("image/") and kind != "application/octet-stream":
        raise Problem(415, f"a body of type '{kind}' has no images; send a form (multipart/form-data) or an image file")
    return [SentImage("", await request.body())], False


async def _read_form(request: Request, max_images: int) -> list[SentImage]:
    try:
        async with request.form(max_files=max_images + 1, max_fields=8) as form:
            files = [part for part in form.getlist("images") if isinstance(part, UploadFile)]
            if len(files) > max_images:
                raise Problem(413, f"a request may have {max_images} images at most; send them in several")
            if not files:
                raise Problem(422, "there is no image in the form; send files in its field 'images'")
            return [SentImage(part.filename or "", await part.read()) for part in files]
    except Problem:
        raise
    except HTTPException as error:
        if "Too many files" in str(error.detail):
            raise Problem(413, f"a request may have {max_images} images at most; send them in several") from error
        raise Problem(400, f"the form cannot be read ({error.detail})") from error
    except FormParserError as error:  # which newer versions of Starlette turn into an HTTPException
        raise Problem(400, f"the form cannot be read ({first_line(error)})") from error


@router.post("/models/{model}/predict", response_model=PredictReply, openapi_extra=IMAGE_BODY)
async def predict(
    request: Request,
    service: Server,
    model: Model,
    top: Annotated[int, Query(ge=1, le=MAX_TOP, description="Number of classes to list.")] = 5,
    coverage: Annotated[
        float | None, Query(gt=0, lt=1, description="Probability that the listed classes hold the true one.")
    ] = None,
) -> JSONResponse:
    """Predict the classes of images: a form with files in the field `images`, or one image file as the body."""
    images, is_form = await read_sent_images(request, service.settings.limits.images)
    loaded = model.require_loaded()
    if coverage is not None and not loaded.classifier.calibration.images:
        raise Problem(409, f"the scores of '{model.name}' are not calibrated, so they say nothing about coverage")
    start = time.perf_counter()
    service.admit()
    try:
        prepared, output = await _compute(service, loaded, images)
    finally:
        service.release()
    if not is_form and isinstance(prepared[0], DataError):
        raise Problem(422, str(prepared[0]))
    predictions = iter(_list_predictions(loaded, output, top, coverage))
    entries = []
    for image, result in zip(images, prepared, strict=True):
        what = {"error": str(result)} if isinstance(result, DataError) else _describe(next(predictions), coverage)
        entries.append({"file": image.name, **what})
    service.metrics.add_predictions(model.name, [entry["unknown"] for entry in entries if "unknown" in entry])
    return JSONResponse({"predictions": entries, "milliseconds": round(1e3 * (time.perf_counter() - start), 1)})


async def _compute(
    service: Service, loaded: LoadedModel, images: Sequence[SentImage]
) -> tuple[list[NDArray[Any] | DataError], MethodOutput | None]:
    """Return what was decoded of each image, and the output for those that could be decoded."""
    max_pixels = service.settings.limits.pixels

    def prepare(image: SentImage) -> NDArray[Any] | DataError:
        try:
            return loaded.prepare(image.content, max_pixels)
        except DataError as error:
            return error

    service.batcher.announce(1)
    try:
        prepared = await service.map_images(prepare, images)
        readable = [each for each in prepared if not isinstance(each, DataError)]
        future = service.batcher.submit(loaded, readable) if readable else None
    finally:
        service.batcher.announce(-1)
    if future is None:
        return prepared, None
    output: MethodOutput = await asyncio.wrap_future(future)
    return prepared, output


def _list_predictions(loaded: LoadedModel, output: MethodOutput | None, top: int, coverage: float | None) -> list[Prediction]:
    if output is None:
        return []
    calibration = loaded.classifier.calibration
    mass = None if coverage is None else calibration.get_mass(coverage)
    return list(make_predictions(output, loaded.classifier.labels, top, mass, calibration.get_threshold(FALSE_ALARMS)))


def _describe(prediction: Prediction, coverage: float | None) -> dict[str, Any]:
    return {
        "label": prediction.label,
        "score": prediction.score,
        "top": [{"label": each.label, "score": each.score} for each in prediction.top],
        "unknown": prediction.unknown,
        "known_score": prediction.score,
        "task_weights": list(prediction.task_weights) or None,
        "labels": None if coverage is None else list(prediction.prediction_set),
    }
