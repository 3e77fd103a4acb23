from __future__ import annotations

from pathlib import Path

import pytest
from helpers import caprompt_in_process

from caprompt.cli import arguments
from caprompt.errors import InputError, OptionError


@pytest.mark.parametrize(("command", "flags"), [("audit", ("--json", "--skip-bad", "--device")), ("run", ("--set", "--config"))])
def test_shared_flags_are_in_the_help_of_commands(tmp_path: Path, command: str, flags: tuple[str, ...]) -> None:
    text = caprompt_in_process(command, "--help", cwd=tmp_path).stdout
    assert all(flag in text for flag in flags)
    assert "--no-json" not in text


def test_assignments_override_the_file_and_earlier_ones(tmp_path: Path) -> None:
    (tmp_path / "a.toml").write_text('epochs = 3\nmethod = "caprompt"\ntasks = [["a", "b"], ["c"]]\n')
    settings = arguments.collect_settings(tmp_path / "a.toml", ["epochs=4", "epochs=5"])
    assert settings == {"epochs": 5, "method": "caprompt", "tasks": [["a", "b"], ["c"]]}


@pytest.mark.parametrize("text", ["epochs", "=3", " = 3"])
def test_assignment_needs_key_and_value(text: str) -> None:
    with pytest.raises(OptionError, match="key=value"):
        arguments.collect_settings(None, [text])


@pytest.mark.parametrize(
    ("text", "value"), [("false", False), ("null", None), ("a=b", "a=b"), ("0-8", "0-8"), ("[1, 2]", [1, 2]), ("", "")]
)
def test_parse_value(text: str, value: object) -> None:
    assert arguments.parse_value(text) == value


def test_unreadable_config_files(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot be read"):
        arguments.collect_settings(tmp_path / "none.toml", [])
    (tmp_path / "latin.toml").write_bytes(b"a = '\xff'")
    with pytest.raises(InputError, match="cannot be read"):
        arguments.collect_settings(tmp_path / "latin.toml", [])
    (tmp_path / "bad.toml").write_text("a = ")
    with pytest.raises(InputError, match="not valid TOML"):
        arguments.collect_settings(tmp_path / "bad.toml", [])


@pytest.mark.parametrize("text", ["", "a", "1,b", "2.5"])
def test_invalid_tasks(text: str) -> None:
    with pytest.raises(OptionError, match="should be a number"):
        arguments.parse_tasks(text)


def test_parse_cycles() -> None:
    assert arguments.parse_cycles(None) == {}
    assert arguments.parse_cycles("3") == {"cycles": 3}
    assert arguments.parse_cycles("auto") == {"cycles": "auto"}
