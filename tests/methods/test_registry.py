from __future__ import annotations

import importlib.metadata
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from helpers import tiny_vit

from caprompt.errors import CapromptError, CapromptWarning, OptionError, UnknownNameError
from caprompt.methods import build_method, get_method, list_methods, registry
from caprompt.methods.linear import Linear

PLUGIN = """
from caprompt.methods import register
from caprompt.methods.linear import Linear

@register("{name}")
class Plugin(Linear):
    summary = "a method of another package"
"""


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., None]]:
    """Install a fake package whose entry point has the given module source and value."""

    def add(source: str, value: str = "fake_plugin") -> None:
        (tmp_path / "fake_plugin.py").write_text(source)
        info = tmp_path / "fake_package-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text("Name: fake-package\nVersion: 1.0\n")
        (info / "entry_points.txt").write_text(f"[caprompt.methods]\nplugin = {value}\n")
        entry_points = importlib.metadata.PathDistribution(info).entry_points
        monkeypatch.setattr(importlib.metadata, "entry_points", lambda *, group: entry_points.select(group=group))
        monkeypatch.syspath_prepend(tmp_path)
        registry._load_entry_points.cache_clear()

    list_methods()  # the built-in methods are registered before any plugin's
    known = dict(registry._REGISTRY)
    yield add
    monkeypatch.undo()
    sys.modules.pop("fake_plugin", None)
    registry._FAILED.clear()
    registry._REGISTRY.clear()
    registry._REGISTRY.update(known)
    registry._load_entry_points.cache_clear()


def test_built_in_methods_are_listed_by_name() -> None:
    assert {"caprompt", "sequential-prompt"} <= list_methods().keys()
    assert all(method.name == name and method.summary for name, method in list_methods().items())
    assert list(list_methods()) == sorted(list_methods())


def test_unknown_method_lists_the_known_ones() -> None:
    with pytest.raises(UnknownNameError, match="there are: .*caprompt.*, sequential-prompt"):
        get_method("magic")


def test_options_are_validated_when_a_method_is_built() -> None:
    with pytest.raises(OptionError, match="unknown option 'lenght' for caprompt"):
        build_method("caprompt", tiny_vit(), {"lenght": 3})


@pytest.mark.parametrize("value", ["fake_plugin", "fake_plugin:Plugin"], ids=["module", "class"])
def test_methods_of_other_packages_are_loaded_by_entry_point(install: Callable[..., None], value: str) -> None:
    install(PLUGIN.format(name="plugin"), value)
    method = get_method("plugin")
    assert issubclass(method, Linear)
    assert method.name == "plugin"
    assert get_method("linear").name == "linear"
    assert build_method("plugin", tiny_vit(), {"epochs": 2}).options.epochs == 2


def test_entry_points_are_loaded_once(install: Callable[..., None], monkeypatch: pytest.MonkeyPatch) -> None:
    install(PLUGIN.format(name="plugin"))
    list_methods()
    monkeypatch.setattr(importlib.metadata, "entry_points", lambda **_: pytest.fail("loaded twice"))
    assert "plugin" in list_methods()


@pytest.mark.parametrize("source", ["import package_that_is_missing\n", "raise RuntimeError('broken\\nbadly')\n", "x ="])
def test_an_entry_point_that_fails_is_a_warning_and_names_its_package(install: Callable[..., None], source: str) -> None:
    install(source)
    message = "cannot load the method 'plugin' of the package 'fake-package': .*uninstall"
    with pytest.warns(CapromptWarning, match=message) as caught:
        assert "caprompt" in list_methods()
    assert "\n" not in str(caught[0].message)
    assert get_method("linear").name == "linear"
    with pytest.raises(CapromptError, match=message):  # the method itself cannot be used
        get_method("plugin")


def test_a_built_in_name_cannot_be_registered_again(install: Callable[..., None]) -> None:
    install(PLUGIN.format(name="caprompt"))
    with pytest.warns(
        CapromptWarning, match=r"'fake-package': the method name 'caprompt' of fake_plugin\.Plugin is already registered"
    ):
        list_methods()
    assert registry._REGISTRY["caprompt"].__module__ == "caprompt.methods.caprompt.classifier"


def test_a_module_may_register_its_method_again(install: Callable[..., None]) -> None:
    """As when a notebook cell is run twice."""
    install("")
    for summary in ("first", "second"):
        method = type("Mine", (Linear,), {"summary": summary, "__module__": "__main__"})
        registry.register("mine")(method)
    assert get_method("mine").summary == "second"
