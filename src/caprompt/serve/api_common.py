"""What all routes use: the service behind them, the model that they name, and how refusals are listed in the schema."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import Depends, Path, Request

from caprompt.serve.schemas import ErrorReply
from caprompt.serve.served_models import ServedModel
from caprompt.serve.service import Service

__all__ = ["REFUSALS", "Model", "Server", "get_model", "get_service"]

SENTENCES = {
    400: "The request cannot be read.",
    401: "The token is missing or wrong.",
    403: "The Host or the Origin is foreign.",
    404: "There is no such thing.",
    409: "The model is not in a state for that.",
    413: "The request has too many bytes or images.",
    415: "The body is of another type.",
    422: "A value or an image cannot be used.",
    429: "Too many jobs are running.",
    503: "Too many requests are being worked on; Retry-After says when to try again.",
}
REFUSALS: dict[int | str, dict[str, Any]] = {
    status: {"model": ErrorReply, "description": sentence} for status, sentence in SENTENCES.items()
}


def get_service(request: Request) -> Service:
    """Return the service of the app that a request came to."""
    service: Service = request.app.state.service
    return service


def get_model(request: Request, model: Annotated[str, Path(description="Name of a model.")]) -> ServedModel:
    """Return the model that the address of a request names."""
    return get_service(request).collection.get(model)


Server = Annotated[Service, Depends(get_service)]
Model = Annotated[ServedModel, Depends(get_model)]
