from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import hypothesis
import pytest
import torch
from backbones.published import publish_backbone
from export.local_hub import LocalHub, start_hub
from helpers import write_backbone

from caprompt.export.onnx_graph import OLDEST_TORCH

EXPORTING = {"export/test_browser.py", "export/test_onnx_graph.py", "export/test_verification.py", "commands/test_export.py"}

# Tensors are tiny here: one thread is several times as fast as many. Child processes inherit the variable.
os.environ["OMP_NUM_THREADS"] = "1"
torch.set_num_threads(1)

hypothesis.settings.register_profile("no deadline", deadline=None)  # how long an example takes depends on the machine's load
hypothesis.settings.load_profile("no deadline")

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as in a background job of a shell; children would inherit it
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session")
def backbone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the weights file of a tiny random ViT."""
    return write_backbone(tmp_path_factory.mktemp("backbone") / "tiny.safetensors")


@pytest.fixture
def backbone_hub(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Iterator[LocalHub]:
    """Return a hub that serves one backbone, while this machine has the embedded one only, and no GPU."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)  # with one, another backbone is proposed
    with start_hub() as hub:
        publish_backbone(hub, tmp_path_factory.mktemp("hub"), monkeypatch)
        yield hub


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run files with slow tests first: a worker takes a whole file, so a long one at the end would delay the run."""
    for item in items if tuple(map(int, torch.__version__.split(".")[:2])) < OLDEST_TORCH else ():
        if "/".join(item.path.parts[-2:]) in EXPORTING or "export" in item.name:
            item.add_marker(pytest.mark.skip(reason="the extra caprompt[export] needs a newer torch"))
    slow = {item.path for item in items if item.get_closest_marker("slow")}
    items.sort(key=lambda item: item.path not in slow)
