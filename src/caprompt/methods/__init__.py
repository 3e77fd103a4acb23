"""Methods of class-incremental learning, one file each. A new one is a new file here with `@register("its-name")`."""

from __future__ import annotations

from caprompt.methods.base import Method, MethodOutput
from caprompt.methods.registry import build_method, get_method, list_methods

__all__ = ["Method", "MethodOutput", "build_method", "get_method", "list_methods"]
