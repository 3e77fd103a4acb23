"""The web application: routes, the page, and the checks before them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, PlainTextResponse
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware

from caprompt import __version__
from caprompt.serve import api_models, api_predict, api_teach
from caprompt.serve.api_common import REFUSALS
from caprompt.serve.metrics import read_resident_bytes
from caprompt.serve.page import add_page
from caprompt.serve.security import BodyGuard, OriginGuard, RequestLog, TokenGuard
from caprompt.serve.service import Service
from caprompt.serve.settings import Settings

__all__ = ["make_app", "make_schema"]

PREFIX = "/api/v1"


def make_app(service: Service) -> FastAPI:
    """Assemble the application around a service, whose models are open."""
    settings = service.settings

    @asynccontextmanager
    async def run_service(app: FastAPI) -> AsyncIterator[None]:
        service.start()
        yield
        await service.stop()

    app = _make_routes(run_service, _list_middleware(service, settings))
    app.state.service = service
    return app


def make_schema() -> dict[str, Any]:
    """Return the OpenAPI schema of the interface."""
    return _make_routes(None, []).openapi()


def _list_middleware(service: Service, settings: Settings) -> list[Middleware]:
    """Return the checks, the outermost first."""
    cors = [
        Middleware(
            CORSMiddleware,
            allow_origins=[origin.rstrip("/") for origin in settings.origins],
            allow_methods=["GET", "POST", "DELETE"],
            allow_headers=["Authorization", "Content-Type"],
            expose_headers=["Retry-After"],
        )
    ]
    return [
        Middleware(RequestLog, metrics=service.metrics),
        Middleware(OriginGuard, settings=settings),
        *(cors if settings.origins else []),
        Middleware(TokenGuard, token=settings.token),
        Middleware(BodyGuard, limits=settings.limits),
    ]


def _make_routes(lifespan: Any, middleware: list[Middleware]) -> FastAPI:
    app = FastAPI(
        title="caprompt",
        description='Teach image classes to models, and predict with them. Refusals are JSON: {"error": "one sentence"}.',
        version=__version__,
        docs_url=None,  # these pages load scripts from another host
        redoc_url=None,
        openapi_url=f"{PREFIX}/openapi.json",
        lifespan=lifespan,
        middleware=middleware,
        redirect_slashes=False,
    )
    for module in (api_models, api_predict, api_teach):
        app.include_router(module.router, prefix=PREFIX, responses=REFUSALS)
    app.add_api_route("/metrics", show_metrics, response_class=PlainTextResponse)
    add_page(app)
    app.add_exception_handler(HTTPException, answer_problem)
    app.add_exception_handler(RequestValidationError, answer_invalid)
    app.add_exception_handler(Exception, answer_failure)
    return app


async def show_metrics(request: Request) -> PlainTextResponse:
    """Return counters in the text format of Prometheus."""
    service: Service = request.app.state.service
    stores = [service.jobs(model) for model in list(service.collection.models.values())]
    gauges = {
        "caprompt_models": len(service.collection.models),
        "caprompt_requests_in_flight": service.in_flight,
        "caprompt_jobs_running": sum(job.is_active for store in stores for job in store.jobs.values()),
        "process_resident_memory_bytes": read_resident_bytes(),
    }
    return PlainTextResponse(service.metrics.format(gauges), media_type="text/plain; version=0.0.4")


async def answer_problem(request: Request, error: Exception) -> JSONResponse:
    """Answer with a refusal."""
    assert isinstance(error, HTTPException)
    sentences = {404: "there is nothing at this address", 405: "this address does not take such a request"}
    known = error.detail if error.detail not in ("Not Found", "Method Not Allowed") else sentences[error.status_code]
    return JSONResponse({"error": known}, error.status_code, headers=error.headers)


async def answer_invalid(request: Request, error: Exception) -> JSONResponse:
    """Answer with what is wrong with the first invalid value."""
    assert isinstance(error, RequestValidationError)
    first = error.errors()[0]
    where = ".".join(str(part) for part in first["loc"][1:]) or "the body"
    return JSONResponse({"error": f"{where} is invalid: {first['msg']}"}, 422)


async def answer_failure(request: Request, error: Exception) -> JSONResponse:
    """Answer when something went wrong here; the error itself is in the server's log."""
    return JSONResponse({"error": "something went wrong in the server; its log says what"}, 500)
