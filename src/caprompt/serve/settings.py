"""What a server is started with: the models, the address, and the limits on requests."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from ipaddress import ip_address
from pathlib import Path
from typing import Any

__all__ = ["Limits", "Settings", "is_loopback"]


@dataclass(frozen=True)
class Limits:
    """Bounds on what clients may ask for; each has a flag of `caprompt serve`."""

    body_bytes: int = 64_000_000  # of one request
    images: int = 100  # in one request
    pixels: int = 40_000_000  # of one image
    in_flight: int = 128  # requests for predictions or uploads whose images are being worked on
    jobs: int = 2  # at the same time, over all models
    received_bytes: int = 512_000_000  # of all requests that are being received, together
    header_seconds: float = 10.0  # from the first byte of a request to the end of its headers
    body_seconds: float = 30.0  # for a body, and a second more for every 16 kB


@dataclass(frozen=True)
class Settings:
    """What `caprompt serve` was asked for."""

    folder: Path  # of one model, or with `many` of a folder of models
    many: bool = False
    host: str = "127.0.0.1"
    port: int = 8000
    token: str | None = None
    origins: tuple[str, ...] = ()  # other web pages that may use this server (CORS)
    allowed_hosts: tuple[str, ...] = ()  # further names by which this server may be addressed
    keep_thumbnails: bool = False
    reload_models: bool = False
    method: str = "caprompt"  # of new models
    backbone: str | None = None  # of new models; None is the best one on this machine
    options: Mapping[str, Any] = field(default_factory=dict)  # of new models
    device: str = "auto"
    runtime: Path | None = None  # npm package onnxruntime-web, for exports to the browser
    limits: Limits = field(default_factory=Limits)


def is_loopback(host: str) -> bool:
    """Return whether only this machine can reach an address.

    >>> [is_loopback(host) for host in ("localhost", "127.0.0.1", "::1", "0.0.0.0", "example.org")]
    [True, True, True, False, False]
    """
    if host.lower() == "localhost":
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False
