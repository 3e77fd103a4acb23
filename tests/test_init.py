"""`import caprompt` and `caprompt --help` are fast and do not import torch."""

from __future__ import annotations

import subprocess
import sys
import time

import pytest

import caprompt


def measure_seconds(*words: str, tries: int = 5) -> float:
    """Return the minimum over several runs, since other load only adds to it."""
    times = []
    for _ in range(tries):
        start = time.perf_counter()
        subprocess.run([sys.executable, *words], check=True, capture_output=True)
        times.append(time.perf_counter() - start)
    return min(times)


def test_import_is_fast_and_does_not_import_torch() -> None:
    script = "import sys, time; t = time.perf_counter(); import caprompt; print(time.perf_counter() - t, 'torch' in sys.modules)"
    runs = [
        subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout.split() for _ in range(3)
    ]
    assert min(float(seconds) for seconds, _ in runs) < 0.3
    assert {torch for _, torch in runs} == {"False"}


def test_help_is_fast_and_does_not_import_torch() -> None:
    assert measure_seconds("-m", "caprompt", "--help") < 1.5
    script = "import sys, caprompt.cli.app; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0


def test_every_public_name_can_be_imported() -> None:
    for name in caprompt.__all__:
        assert getattr(caprompt, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'Nothing'"):
        _ = caprompt.Nothing
