from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from helpers import caprompt_in_process, write_backbone, write_squares

#: Flags that make training quick.
QUICK_FLAGS = (
    "--set",
    "epochs=2",
    "--set",
    "batch_size=4",
    "--set",
    "length=4",
    "--set",
    "align_epochs=3",
    "--set",
    "projections=100",
)


@pytest.fixture(scope="session")
def quick() -> tuple[str, ...]:
    """Return flags that make training quick."""
    return QUICK_FLAGS


@pytest.fixture(scope="module")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a backbone, training and test images, and a model `pets` that knows red and green."""
    folder = tmp_path_factory.mktemp("workspace")
    write_backbone(folder / "tiny.safetensors")
    write_squares(folder / "week1", ["red", "green"])
    write_squares(folder / "test", ["red", "green"], each=3, start=60)
    done = caprompt_in_process("learn", "pets", "week1", "--backbone", "tiny.safetensors", *QUICK_FLAGS, cwd=folder)
    assert done.returncode == 0, done.stderr
    return folder


@pytest.fixture
def blue_cyan(workspace: Path) -> Path:
    """Return a fresh folder `bad` of blue and cyan images, for a test to damage."""
    shutil.rmtree(workspace / "bad", ignore_errors=True)
    return write_squares(workspace / "bad", ["blue", "cyan"])
