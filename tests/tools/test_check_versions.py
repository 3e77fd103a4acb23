"""tools/check_versions.py takes the lowest versions from pyproject.toml."""

from __future__ import annotations

import doctest
import runpy
import sys
from types import SimpleNamespace
from typing import Any

import pytest
from helpers import ROOT

from caprompt.utils.files import read_toml


@pytest.fixture(scope="module")
def tool() -> SimpleNamespace:
    return SimpleNamespace(**runpy.run_path(str(ROOT / "tools" / "check_versions.py")))


@pytest.fixture(scope="module")
def project() -> dict[str, Any]:
    content: dict[str, Any] = read_toml(ROOT / "pyproject.toml")["project"]
    return content


def test_bounds_are_those_of_every_dependency(tool: SimpleNamespace, project: dict[str, Any]) -> None:
    declared = [line.partition(">=")[::2] for line in project["dependencies"] if ";" not in line]
    assert tool.read_bounds((ROOT / "pyproject.toml").read_text(encoding="utf-8")) == {
        name.lower().replace("_", "-"): version for name, version in declared
    }
    assert tool.SETTINGS["lowest"].python == project["requires-python"].removeprefix(">=")
    assert f"Programming Language :: Python :: {tool.SETTINGS['newest'].python}" in project["classifiers"]


def test_a_package_above_its_bound_is_reported(tool: SimpleNamespace) -> None:
    bounds = {"torch": "2.4", "rich": "13.7"}
    assert tool.find_deviations(bounds, {"torch": "2.4.0", "rich": "13.7.0"}) == []
    assert tool.find_deviations(bounds, {"torch": "2.4.10"}) == ["torch is 2.4.10, not 2.4", "rich is missing, not 13.7"]


def test_tests_use_the_bounds_of_the_extras(project: dict[str, Any]) -> None:
    """The suite with the lowest versions installs `dev`; what an extra promises has to be what is tested."""

    def split(line: str) -> tuple[str, str]:
        name, _, version = line.partition(";")[0].partition(">=")
        return name.strip(), version.strip()

    extras = dict(project["optional-dependencies"])
    tested = dict(map(split, extras.pop("dev")))
    promised = [split(line) for lines in extras.values() for line in lines]
    assert [(name, version, tested[name]) for name, version in promised if tested.get(name, version) != version] == []


def test_words_after_two_dashes_are_for_pytest_wherever_options_stand(tool: SimpleNamespace) -> None:
    for words in (["lowest", "--python", "3.12"], ["--python", "3.12", "lowest"]):
        args = tool.parse_arguments([*words, "--", "--numprocesses", "auto", "-m", "not slow", "--"])
        assert (args.versions, args.python, args.pytest) == ("lowest", "3.12", ["--numprocesses", "auto", "-m", "not slow", "--"])
    assert tool.parse_arguments(["newest"]).pytest == []


def test_doctests() -> None:
    sys.path.insert(0, str(ROOT / "tools"))
    try:
        import check_versions
    finally:
        sys.path.pop(0)
    assert doctest.testmod(check_versions).attempted
    assert doctest.testmod(check_versions).failed == 0
