"""Docstrings of the reference: what is missing is found, and what can be completed is."""

from __future__ import annotations

import doctest
import importlib.util
import sys
from types import ModuleType

import pytest
from helpers import ROOT

griffe = pytest.importorskip("griffe", reason="mkdocstrings-python is not installed")

BASE = '''
"""A base."""
__all__ = ["Base", "LIMIT", "FIRST", "SECOND"]
LIMIT = 3  # [most] of them
FIRST, SECOND = 1, 2  # in order

class Base:
    """A base."""

    def run(self):
        """Run.

        >>> 1 + 1
        2
        """
'''
CHILD = '''
"""A child."""
from pydantic import Field
from caprompt.base import Base
__all__ = ["Base", "Child", "make"]

class Child(Base):
    """A child."""

    size: int = Field(3, description="how large")
    #: what it is called
    name: str

    def __init__(self):
        self.state = 0  # not documented: a comment on the implementation

    def run(self):
        return self.size

    def stop(self):
        return None

def make():
    return Child()
'''


@pytest.fixture(scope="module")
def tool() -> ModuleType:
    spec = importlib.util.spec_from_file_location("docstrings", ROOT / "tools" / "docstrings.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["docstrings"] = module  # griffe looks it up
    spec.loader.exec_module(module)
    return module


def test_docstrings_are_completed(tool: ModuleType) -> None:
    extensions = griffe.load_extensions(tool.Docstrings)
    modules = {"__init__.py": '"""A package."""', "base.py": BASE, "child.py": CHILD}
    with griffe.temporary_visited_package("caprompt", modules, extensions=extensions) as package:
        child, base = package["child.Child"], package["base"]
        assert child["run"].docstring.value == "Run.\n\n```pycon\n>>> 1 + 1\n2\n```"
        assert (child["size"].docstring.value, child["name"].docstring.value) == ("how large", "what it is called")
        assert child["state"].docstring is None
        assert (base["LIMIT"].docstring.value, base["SECOND"].docstring.value) == (r"\[most\] of them", "in order")
        assert tool.find_undocumented(package) == ["caprompt.child.make", "caprompt.child.Child.stop"]


def test_the_package_is_documented(tool: ModuleType) -> None:
    assert tool.find_undocumented(tool.load_package()) == []


def test_examples(tool: ModuleType) -> None:
    assert doctest.testmod(tool).failed == 0
