"""Methods of class-incremental learning, one file each. A new one is a new file here with `@register("its-name")`."""

from __future__ import annotations

from caprompt.methods.base import Answer, Method
from caprompt.methods.registry import build, find, registered

__all__ = ["Answer", "Method", "build", "find", "registered"]
