"""Registry of methods by name.

`@register("name")` on a class adds it. The modules of `caprompt.methods` are imported on demand,
and so are the methods of other installed packages, which declare them as entry points:

    [project.entry-points."caprompt.methods"]
    my-method = "my_package.my_method"       # a module or a class; importing it runs `@register`
"""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
import pkgutil
import warnings
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, TypeVar

from caprompt.backbones.vit import ViT
from caprompt.errors import CapromptError, CapromptWarning, UnknownNameError, first_line
from caprompt.methods.base import Method
from caprompt.methods.options import validate_options

__all__ = ["ENTRY_POINTS", "build_method", "get_method", "list_methods", "register"]

ENTRY_POINTS = "caprompt.methods"  # entry point group of other packages

_REGISTRY: dict[str, type[Method]] = {}
_FAILED: dict[str, str] = {}  # entry points that cannot be loaded, and why
_MethodClass = TypeVar("_MethodClass", bound=type[Method])


def register(name: str) -> Callable[[_MethodClass], _MethodClass]:
    """Return a class decorator that registers a method; a name of another module is refused."""

    def add(method: _MethodClass) -> _MethodClass:
        known = _REGISTRY.get(name)
        if known is not None and known.__module__ != method.__module__:  # running a module or notebook cell again is fine
            raise CapromptError(
                f"the method name '{name}' of {method.__module__}.{method.__qualname__} is already registered by "
                f"{known.__module__}.{known.__qualname__}; choose another name"
            )
        method.name = name
        _REGISTRY[name] = method
        return method

    return add


def list_methods() -> dict[str, type[Method]]:
    """Return all methods by name, those of other installed packages included; warn about one that cannot be loaded."""
    package = importlib.import_module("caprompt.methods")
    for module in pkgutil.iter_modules(package.__path__):
        importlib.import_module(f"caprompt.methods.{module.name}")
    _load_entry_points()
    return dict(sorted(_REGISTRY.items()))


def _import_module_of(name: str) -> None:
    """Import the module that is called as the method, if there is one: to import all of them takes a quarter of a second."""
    module = f"caprompt.methods.{name.replace('-', '_')}"
    if name.replace("-", "").isalnum() and importlib.util.find_spec(module) is not None:
        importlib.import_module(module)


@cache
def _load_entry_points() -> None:
    """Import the methods of other installed packages, once per process."""
    for entry_point in importlib.metadata.entry_points(group=ENTRY_POINTS):
        try:
            entry_point.load()
        except Exception as error:  # any exception: this is someone else's code
            package = entry_point.dist.name if entry_point.dist else entry_point.value
            _FAILED[entry_point.name] = (
                f"cannot load the method '{entry_point.name}' of the package '{package}': {first_line(error)}; "
                "update or uninstall that package"
            )
            warnings.warn(_FAILED[entry_point.name], CapromptWarning, stacklevel=3)


def get_method(name: str) -> type[Method]:
    """Return the class of a method; the error for an unknown name lists the known ones."""
    _import_module_of(name)
    if name in _REGISTRY:
        return _REGISTRY[name]
    methods = list_methods()
    if name not in methods and name in _FAILED:
        raise CapromptError(_FAILED[name])
    if name not in methods:
        raise UnknownNameError("method", name, methods)
    return methods[name]


def build_method(name: str, vit: ViT, options: Mapping[str, Any]) -> Method:
    """Build an untrained method with validated options."""
    method = get_method(name)
    return method(vit, validate_options(method.options_class, options, owner=name))
