"""`python -m caprompt`: what it sets up before PyTorch is imported."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from caprompt.__main__ import main


def run_version(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["caprompt", "--version"])
    with pytest.raises(SystemExit) as exited:
        main()
    assert not exited.value.code


def test_waiting_threads_sleep(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_WAIT_POLICY", "")  # so that it is restored afterwards
    monkeypatch.delenv("OMP_WAIT_POLICY")
    run_version(monkeypatch)
    assert os.environ["OMP_WAIT_POLICY"] == "PASSIVE"


def test_a_wait_policy_of_the_user_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_WAIT_POLICY", "ACTIVE")
    run_version(monkeypatch)
    assert os.environ["OMP_WAIT_POLICY"] == "ACTIVE"


@pytest.mark.parametrize(("imported", "frozen"), [("harmless", True), ("triton", False)])
def test_objects_are_frozen_at_the_end_unless_a_module_would_call_them_leaked(imported: str, frozen: bool) -> None:
    program = (
        "import atexit, gc, sys, types; atexit.register(lambda: print('frozen', gc.get_freeze_count()))\n"
        f"sys.modules.setdefault('{imported}', types.ModuleType('{imported}'))\n"
        "from caprompt.__main__ import main; main()"
    )
    done = subprocess.run([sys.executable, "-c", program, "--version"], capture_output=True, text=True, check=True)
    word, count = done.stdout.split()[-2:]
    assert word == "frozen"
    assert (int(count) > 1000) == frozen
