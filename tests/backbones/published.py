"""A backbone on a hub of this machine: a tiny network under the name of DeiT-Ti, which is what a CPU is proposed."""

from __future__ import annotations

import hashlib
import socket
from dataclasses import replace
from pathlib import Path

import pytest
from export.local_hub import LocalHub, use_endpoint
from helpers import TINY, write_backbone

from caprompt.backbones.registry import MODELS

__all__ = ["DEIT", "publish_backbone", "use_closed_port"]

DEIT = "deit_tiny_patch16_224.fb_in1k"


def publish_backbone(hub: LocalHub, folder: Path, monkeypatch: pytest.MonkeyPatch) -> bytes:
    """Publish the network, and return its file; on this machine there is no backbone besides the embedded one."""
    use_endpoint(hub.endpoint, folder, monkeypatch)
    monkeypatch.setenv("CAPROMPT_BACKBONES", str(folder / "own"))
    content = write_backbone(folder / "published.safetensors").read_bytes()
    (folder / "published.safetensors").unlink()
    monkeypatch.setitem(MODELS, DEIT, replace(MODELS[DEIT], config=TINY, sha256=hashlib.sha256(content).hexdigest()))
    hub.create(f"timm/{DEIT}")
    hub.commit(f"timm/{DEIT}", {"model.safetensors": content})
    return content


def use_closed_port(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the hub be at an address where nobody answers."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    use_endpoint(f"http://127.0.0.1:{port}", folder, monkeypatch)
