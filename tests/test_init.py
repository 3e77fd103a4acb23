"""`import caprompt` is cheap, and so is asking for help."""

from __future__ import annotations

import subprocess
import sys
import time

import pytest

import caprompt


def best_seconds(*words: str, tries: int = 5) -> float:
    """The least of several runs: a busy machine only ever adds to it."""
    times = []
    for _ in range(tries):
        began = time.perf_counter()
        subprocess.run([sys.executable, *words], check=True, capture_output=True)
        times.append(time.perf_counter() - began)
    return min(times)


def test_import_is_quick_and_brings_no_torch() -> None:
    script = "import sys, time; t = time.perf_counter(); import caprompt; print(time.perf_counter() - t, 'torch' in sys.modules)"
    runs = [
        subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout.split() for _ in range(3)
    ]
    assert min(float(seconds) for seconds, _ in runs) < 0.3
    assert {torch for _, torch in runs} == {"False"}


def test_help_is_quick_and_brings_no_torch() -> None:
    assert best_seconds("-m", "caprompt", "--help") < 1.5
    script = "import sys, caprompt.cli; print('torch' in sys.modules, 'pydantic' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout.split()[0] == "False"


def test_every_public_name_can_be_had() -> None:
    for name in caprompt.__all__:
        assert getattr(caprompt, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'Nothing'"):
        _ = caprompt.Nothing
