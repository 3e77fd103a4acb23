from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
import torch
from helpers import write_backbone

# Tensors are tiny here: one thread is several times as fast as many, and the commands run as processes inherit it.
os.environ["OMP_NUM_THREADS"] = "1"
torch.set_num_threads(1)

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as in a job that a shell put into the background; children would inherit it
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session")
def backbone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The file of a tiny random ViT."""
    return write_backbone(tmp_path_factory.mktemp("backbone") / "tiny.safetensors")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Files with slow tests come first: a worker takes a whole file, and nobody should wait for a long one at the end."""
    slow = {item.path for item in items if item.get_closest_marker("slow")}
    items.sort(key=lambda item: item.path not in slow)
