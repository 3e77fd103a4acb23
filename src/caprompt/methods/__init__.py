"""Class-incremental learning methods, one module or package each.

To add one, add a module with a class that is decorated with `@register("name")`.
"""

from __future__ import annotations

from caprompt.methods.base import Method, MethodOutput
from caprompt.methods.options import Options
from caprompt.methods.registry import build_method, get_method, list_methods, register

__all__ = ["Method", "MethodOutput", "Options", "build_method", "get_method", "list_methods", "register"]
