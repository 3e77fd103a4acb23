from __future__ import annotations

from pathlib import Path

import pytest

from caprompt.cli import arguments
from caprompt.errors import InputError, OptionError
from caprompt.experiments import config


def test_later_assignments_win_over_the_file(tmp_path: Path) -> None:
    (tmp_path / "a.toml").write_text('epochs = 3\nmethod = "caprompt"\ntasks = [["a", "b"], ["c"]]\n')
    found = arguments.collect_settings(tmp_path / "a.toml", ["epochs=4", "epochs=5"])
    assert found == {"epochs": 5, "method": "caprompt", "tasks": [["a", "b"], ["c"]]}


@pytest.mark.parametrize("text", ["epochs", "=3", " = 3"])
def test_assignments_need_both_sides(text: str) -> None:
    with pytest.raises(OptionError, match="key=value"):
        arguments.collect_settings(None, [text])


@pytest.mark.parametrize(
    ("text", "value"), [("false", False), ("null", None), ("a=b", "a=b"), ("0-8", "0-8"), ("[1, 2]", [1, 2]), ("", "")]
)
def test_values(text: str, value: object) -> None:
    assert arguments.parse_value(text) == value


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot be read"):
        arguments.collect_settings(tmp_path / "none.toml", [])
    (tmp_path / "latin.toml").write_bytes(b"a = '\xff'")
    with pytest.raises(InputError, match="cannot be read"):
        arguments.collect_settings(tmp_path / "latin.toml", [])
    (tmp_path / "bad.toml").write_text("a = ")
    with pytest.raises(InputError, match="not valid TOML"):
        arguments.collect_settings(tmp_path / "bad.toml", [])


def test_neither_a_setting_nor_an_option() -> None:
    with pytest.raises(OptionError, match=r"unknown option 'sed' for x \(did you mean 'seed'\?\); there are: alpha, seed"):
        config.split_settings({"sed": 1}, ["seed"], ["alpha"], "x")


@pytest.mark.parametrize("text", ["", "a", "1,b", "2.5"])
def test_tasks_that_make_no_sense(text: str) -> None:
    with pytest.raises(OptionError, match="should be a number"):
        arguments.parse_tasks(text)
