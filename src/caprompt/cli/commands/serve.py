"""The command `serve`: an HTTP interface to models, and a page on which they are taught and tried."""

from __future__ import annotations

import os
import sys
import webbrowser
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from caprompt.cli.arguments import Config, Device, Set, collect_settings
from caprompt.cli.console import out
from caprompt.errors import OptionError

__all__ = ["serve"]

TOKEN_VARIABLE = "CAPROMPT_TOKEN"


def serve(
    model: Path | None = None,
    *,
    models: Path | None = None,
    host: str = "127.0.0.1",
    port: int = 8000,
    token: str | None = None,
    open_page: Annotated[bool | None, Parameter(name="--open", negative="--no-open")] = None,
    keep_thumbnails: bool = False,
    reload_model: bool = False,
    origin: Annotated[list[str] | None, Parameter(negative=())] = None,
    allow_host: Annotated[list[str] | None, Parameter(negative=())] = None,
    max_body_mb: float = 64,
    max_images: int = 100,
    max_pixels: int = 40_000_000,
    max_in_flight: int = 128,
    max_jobs: int = 2,
    method: str | None = None,
    backbone: str | None = None,
    runtime: Path | None = None,
    config: Config = None,
    set_: Set = None,
    device: Device = "auto",
) -> None:
    """Open a page on which a model is taught and tried, with an HTTP interface behind it (extra `serve`).

    Examples:

        caprompt serve pets
        caprompt serve --models models --host 0.0.0.0

    Parameters
    ----------
    model
        Folder of the model; the first lesson makes it if it does not exist yet.
    models
        Serve every model in this folder instead, and let new ones be made in it.
    host
        Address to listen at; any but this machine's own needs a token.
    port
        Port to listen at; 0 is any free one.
    token
        What clients need to know; by default one is made up where it is needed. The environment variable CAPROMPT_TOKEN sets
        it as well.
    open_page
        Open the page in a browser; by default on a terminal only.
    keep_thumbnails
        Keep one small picture of each class; no image is kept otherwise.
    reload_model
        Take in models that were taught elsewhere, such as by `caprompt learn`.
    origin
        Address of another web page that may use this server; may be repeated.
    allow_host
        Further name by which this server may be addressed, such as that of a proxy; this needs a token. May be repeated.
    max_body_mb
        Largest request, in megabytes.
    max_images
        Most images in a request.
    max_pixels
        Most pixels of an image.
    max_in_flight
        Most requests whose images are worked on at the same time.
    max_jobs
        Most jobs at the same time.
    method
        For new models: name of a method.
    backbone
        For new models: name of a backbone or weights file; by default the best one on this machine.
    runtime
        Folder of the npm package onnxruntime-web, for exports to the browser.
    """
    from caprompt.serve.http_server import check_packages, complete_settings, run
    from caprompt.serve.settings import Limits, Settings

    if (model is None) == (models is None):
        raise OptionError("name either one model or a folder of models: caprompt serve MODEL, or caprompt serve --models FOLDER")
    for name, value in {
        "body-mb": max_body_mb,
        "images": max_images,
        "pixels": max_pixels,
        "in-flight": max_in_flight,
        "jobs": max_jobs,
    }.items():
        if value <= 0:
            raise OptionError(f"--max-{name} must be positive, not {value}")
    check_packages()
    options = collect_settings(config, set_ or [])
    new_method, new_backbone = (options.pop("method", method), options.pop("backbone", backbone))
    limits = Limits(body_bytes=int(max_body_mb * 1e6), images=max_images, pixels=max_pixels, in_flight=max_in_flight, jobs=max_jobs)
    folder = model if models is None else models
    assert folder is not None
    settings = Settings(
        folder=folder,
        many=models is not None,
        host=host,
        port=port,
        token=token or os.environ.get(TOKEN_VARIABLE) or None,
        origins=tuple(origin or ()),
        allowed_hosts=tuple(allow_host or ()),
        keep_thumbnails=keep_thumbnails,
        reload_models=reload_model,
        method=new_method or "caprompt",
        backbone=new_backbone,
        options=options,
        device=device,
        runtime=runtime,
        limits=limits,
    )
    should_open = sys.stdout.isatty() if open_page is None else open_page

    def announce(address: str) -> None:
        out.print(f"Serving '{folder}' at {address} (stop with Ctrl-C)", soft_wrap=True)
        if should_open:
            webbrowser.open(address)

    run(complete_settings(settings), announce)
