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
