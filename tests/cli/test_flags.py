from __future__ import annotations

import pytest
from helpers import caprompt


@pytest.mark.parametrize(("command", "flags"), [("audit", ("--json", "--skip-bad", "--device")), ("run", ("--set", "--config"))])
def test_commands_in_any_file_have_them_described(command: str, flags: tuple[str, ...]) -> None:
    shown = caprompt(command, "--help").stdout
    assert all(flag in shown for flag in flags)
    assert "--no-json" not in shown
