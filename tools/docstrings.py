"""The public names of the package, and their docstrings as the site shows them; read from the source, without importing it.

mkdocstrings loads `Docstrings` from here (mkdocs.yml). It makes of docstrings what Markdown and readers need: doctests are code,
a constant or field is described by its comment or by `description=...`, and a method without a docstring has that of the method
that it overrides.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import griffe

__all__ = ["ROOT", "Docstrings", "find_undocumented", "is_callable_or_class", "list_modules", "list_names", "load_package"]

ROOT = Path(__file__).resolve().parents[1]
NOT_LISTED = ("caprompt.cli", "caprompt.__main__")  # commands have a page of their own


class Docstrings(griffe.Extension):
    """Griffe extension that completes docstrings."""

    def on_package(self, *, pkg: griffe.Module, **kwargs: Any) -> None:
        """Complete the docstrings of a package that was loaded."""
        for module in [item for item in walk(pkg) if isinstance(item, griffe.Module)]:
            add_unpacked(module)
        for item in walk(pkg):
            if item.docstring is None:
                text = inherit_docstring(item) if item.is_function else read_description(item) if item.is_attribute else ""
                item.docstring = griffe.Docstring(text, parent=item) if text else None
            else:
                item.docstring.value = fence_doctests(item.docstring.value)


def load_package() -> griffe.Module:
    """Return the package with completed docstrings."""
    loader = griffe.GriffeLoader(search_paths=[ROOT / "src"], extensions=griffe.load_extensions(Docstrings))
    package = loader.load("caprompt")
    loader.resolve_aliases(external=False)
    assert isinstance(package, griffe.Module)
    return package


def walk(item: griffe.Object) -> Iterator[griffe.Object]:
    """Yield an object and all in it that is defined there."""
    yield item
    for member in item.members.values():
        if isinstance(member, griffe.Object):
            yield from walk(member)


def add_unpacked(module: griffe.Module) -> None:
    """Add the constants of assignments such as `A, B = 1, 2`, which griffe leaves out."""
    if not isinstance(module.filepath, Path):
        return
    for node in ast.parse(module.source).body:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Tuple):
            for target in node.targets[0].elts:
                if isinstance(target, ast.Name):
                    attribute = griffe.Attribute(target.id, lineno=node.lineno, endlineno=node.end_lineno, parent=module)
                    module.set_member(target.id, attribute)


def list_modules(package: griffe.Module) -> list[griffe.Module]:
    """Return the public modules, a package before its modules."""
    modules = [item for item in walk(package) if isinstance(item, griffe.Module) and not is_private(item)]
    return sorted(modules, key=lambda module: module.path)


def is_private(module: griffe.Module) -> bool:
    """Return whether a module is not listed."""
    return module.path.startswith(NOT_LISTED) or any(part.startswith("_") for part in module.path.split("."))


def list_names(module: griffe.Module) -> list[str]:
    """Return the names in a module's `__all__`."""
    return [str(name) for name in module.exports or ()]


def is_callable_or_class(module: griffe.Module, name: str) -> bool:
    """Return whether a name is a function or a class, not a constant or a type."""
    return bool(module.members[name].is_function or module.members[name].is_class)


def find_undocumented(package: griffe.Module) -> list[str]:
    """Return public modules, classes, functions and methods that have no docstring.

    Constants and types need none: the site shows their values.
    """
    found: list[griffe.Object] = []
    for module in list_modules(package):
        items = [module.members[name] for name in list_names(module) if is_callable_or_class(module, name)]
        own = [item for item in items if isinstance(item, griffe.Object)]
        methods = [member for item in own for member in item.members.values() if item.is_class and not member.name.startswith("_")]
        found += [module, *own, *(each for each in methods if isinstance(each, griffe.Object) and each.is_function)]
    return [item.path for item in found if item.docstring is None]


def fence_doctests(text: str) -> str:
    """Return a docstring with its doctests as code blocks, which Markdown would take for quotations.

    >>> fence_doctests("Add.\\n\\n>>> 1 + 1\\n2\\n\\nMore.")
    'Add.\\n\\n```pycon\\n>>> 1 + 1\\n2\\n```\\n\\nMore.'
    """
    blocks = re.split(r"\n\n+", text)
    return "\n\n".join(f"```pycon\n{block}\n```" if block.startswith(">>> ") else block for block in blocks)


def read_description(item: griffe.Object) -> str:
    """Return what is said about a constant or a field: its comment, or the description that pydantic knows."""
    value = str(getattr(item, "value", ""))
    if described := re.search(r"""description=(['"])(.*?)(?<!\\)\1""", value, flags=re.DOTALL):
        return escape_markdown(described[2])
    if item.lineno is None or item.endlineno is None or not isinstance(item.filepath, Path):
        return ""
    source = item.lines_collection[item.filepath]
    above: list[str] = []
    mark = "#:" if is_set_in_init(item) else "#:?"  # other comments there are about the implementation
    number = item.lineno - 1
    while number > 0 and (comment := re.match(rf"\s*{mark} (?!noqa|type: )(.*)", source[number - 1])):
        above.insert(0, comment[1])
        number -= 1
    if above or is_set_in_init(item):
        return escape_markdown(" ".join(above))
    comments = [re.search(r"  # (?!noqa|type: )(.*?)(?:  # noqa.*)?$", source[end - 1]) for end in (item.lineno, item.endlineno)]
    return next((escape_markdown(comment[1]) for comment in comments if comment), "")


def is_set_in_init(item: griffe.Object) -> bool:
    """Return whether an attribute is assigned in `__init__`, not declared in the body of its class."""
    init = item.parent.members.get("__init__") if isinstance(item.parent, griffe.Class) else None
    return init is not None and (init.lineno or 0) <= (item.lineno or 0) <= (init.endlineno or 0)


def escape_markdown(text: str) -> str:
    r"""Escape what Markdown would take for a link or an emphasis, outside of code.

    >>> escape_markdown("[true task][task], as in `a[0]`")
    '\\[true task\\]\\[task\\], as in `a[0]`'
    """
    parts = re.split(r"(`[^`]*`)", text)
    return "".join(part if part.startswith("`") else re.sub(r"([\[\]*_<])", r"\\\1", part) for part in parts)


def inherit_docstring(method: griffe.Object) -> str:
    """Return the docstring of the method that this one overrides."""
    if not isinstance(method.parent, griffe.Class):
        return ""
    for base in method.parent.mro():
        if method.name in base.members and (docstring := base.members[method.name].docstring):
            return docstring.value
    return ""
