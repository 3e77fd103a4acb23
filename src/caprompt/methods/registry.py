"""Methods by name: `@register` makes one known, entry points bring those of other packages."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from caprompt.backbones.vit import ViT
from caprompt.errors import UnknownNameError
from caprompt.methods import options as option_checks
from caprompt.methods.base import Method

__all__ = ["build_method", "get_method", "list_methods", "register"]

_REGISTRY: dict[str, type[Method]] = {}
Registered = TypeVar("Registered", bound=type[Method])


def register(name: str) -> Callable[[Registered], Registered]:
    """Class decorator: make a method known by a name."""

    def enter(method: Registered) -> Registered:
        method.name = name
        _REGISTRY[name] = method
        return method

    return enter


def list_methods() -> dict[str, type[Method]]:
    """All methods by name. Every module of this package is imported for it, so a new file needs no list."""
    package = importlib.import_module("caprompt.methods")
    for module in pkgutil.iter_modules(package.__path__):
        importlib.import_module(f"caprompt.methods.{module.name}")
    return dict(sorted(_REGISTRY.items()))


def get_method(name: str) -> type[Method]:
    """The class of a method; an unknown name is answered with the known ones."""
    methods = list_methods()
    if name not in methods:
        raise UnknownNameError("method", name, methods)
    return methods[name]


def build_method(name: str, vit: ViT, options: Mapping[str, Any]) -> Method:
    """A method that has learned nothing yet, with checked options."""
    method = get_method(name)
    return method(vit, option_checks.validate_options(method.options_class, options, owner=name))
