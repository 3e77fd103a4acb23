"""Write the reference of the site into docs/reference: commands, methods with their options, and the Python interface.

python tools/reference_pages.py [--docs docs]

Nothing of it is committed. Pages of the Python interface hold directives, which mkdocstrings replaces with signatures and
docstrings when the site is built; `tools/docstrings.py` says which names are public. A name without a docstring is an error.
"""

from __future__ import annotations

import argparse
import re
import shutil
import sys
from pathlib import Path

import griffe
from docstrings import ROOT, find_undocumented, is_callable_or_class, list_modules, list_names, load_package

GROUPS = {
    "The main interface": ("caprompt", "classifier", "outputs", "errors", "data", "client", "sklearn"),
    "Experiments": ("experiments", "metrics", "protocols", "calibration", "callbacks", "report", "reproduce"),
    "Methods and backbones": ("methods", "methods.components", "backbones", "testing"),
    "Beyond one process": ("export", "serve", "distributed"),
    "Inside": ("data.datasets", "checkpoint", "engine", "utils"),
}
PAGES = tuple(page for pages in GROUPS.values() for page in pages)
LONGEST_VALUE = 12  # lines of a constant's source


def write_pages(folder: Path) -> list[Path]:
    """Write every page of the reference into an empty folder, and return them."""
    shutil.rmtree(folder, ignore_errors=True)
    package = load_package()
    if undocumented := find_undocumented(package):
        sys.exit("these names need a docstring: " + ", ".join(undocumented))
    texts = {f"python/{page.replace('.', '-')}.md": make_python_page(package, page) for page in PAGES}
    texts |= {"index.md": make_index(package), "commands.md": make_command_page(), "methods.md": make_method_page()}
    for name, text in texts.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text, encoding="utf-8")
    return [folder / name for name in texts]


def make_index(package: griffe.Module) -> str:
    """Return the first page of the reference: what is on the others."""
    lines = [
        "# Reference",
        "This part is generated from the code.",
        "- [Commands](commands.md): every command and every option\n- [Methods](methods.md): every method and its options",
    ]
    for group, pages in GROUPS.items():
        lines.append(f"## {group}")
        links = [f"- [`{full_path(page)}`](python/{page.replace('.', '-')}.md): {summarize(find(package, page))}" for page in pages]
        lines.append("\n".join(links))
    return join(lines)


# Python interface


def full_path(page: str) -> str:
    """Return the path of a page's module: full_path("data") is "caprompt.data"."""
    return page if page == "caprompt" else f"caprompt.{page}"


def find(package: griffe.Module, page: str) -> griffe.Module:
    """Return the module of a page."""
    module = package if page == "caprompt" else package[page]
    assert isinstance(module, griffe.Module)
    return module


def summarize(item: griffe.Object | griffe.Alias) -> str:
    """Return the first paragraph of a docstring on one line."""
    return " ".join(item.docstring.value.partition("\n\n")[0].split()) if item.docstring else ""


def select_page(module: griffe.Module) -> str:
    """Return the page that a module is on: that of its nearest package with one."""
    parts = module.path.split(".")[1:]
    while parts and ".".join(parts) not in PAGES:
        parts.pop()
    return ".".join(parts) or "caprompt"


def make_python_page(package: griffe.Module, page: str) -> str:
    """Return a page with every public name of a module and of its modules that have no page of their own."""
    main = find(package, page)
    lines = [f"# {main.path}", make_directive(main.path, show_root_heading=False, show_root_toc_entry=False, members=False)]
    for module in [each for each in list_modules(package) if select_page(each) == page]:
        if module is not main:
            lines.append(make_directive(module.path, heading_level=2, show_root_full_path=True, members=False))
        lines += make_entries(module, level=2 if module is main else 3)
    return join(lines)


def make_entries(module: griffe.Module, level: int) -> list[str]:
    """Return the entries of a module's names: those that it takes from others, then its own, constants last."""
    names = list_names(module)
    taken = [name for name in names if module.members[name].is_alias]
    if module.path == "caprompt":  # the page to look at first has all of them, the main class on top
        taken.sort(key=lambda name: name != "ContinualClassifier")
        entries = [make_directive(f"caprompt.{name}", heading_level=level, inherited_members=True) for name in taken]
    else:
        entries = ["It exports:", "\n".join(make_export(module, name) for name in taken)] if taken else []
    for name in sorted(set(names) - set(taken), key=lambda name: (not is_callable_or_class(module, name), names.index(name))):
        if is_callable_or_class(module, name) or name.startswith("_"):
            entries.append(make_directive(f"{module.path}.{name}", heading_level=level))
        else:
            entries.append(make_constant(module, name, level))
    return entries


def make_directive(path: str, **options: bool | int) -> str:
    """Return what mkdocstrings replaces with the documentation of an object.

    >>> print(make_directive("caprompt.audit", members=False))
    ::: caprompt.audit
        options:
          members: false
    """
    lines = [f"      {name}: {str(value).lower()}" for name, value in options.items()]
    return "\n".join([f"::: {path}", *(["    options:", *lines] if lines else [])])


def make_export(package: griffe.Module, name: str) -> str:
    """Return a line with the anchor of a name that a package exports, and a link to where it is documented."""
    member = package.members[name]
    assert isinstance(member, griffe.Alias)
    target = member.final_target
    page = f"{select_page(target.module).replace('.', '-')}.md"
    description = f": {summarize(target)}" if target.docstring else ""
    return f'- <span id="{package.path}.{name}"></span>[`{name}`]({page}#{target.path}){description}'


def make_constant(module: griffe.Module, name: str, level: int) -> str:
    """Return the entry of a constant or a type: the comment at its assignment, and its source."""
    attribute = module.members[name]
    lines = module.source.splitlines()[(attribute.lineno or 1) - 1 : attribute.endlineno]
    shown = lines if len(lines) <= LONGEST_VALUE else [*lines[: LONGEST_VALUE - 1], "    ..."]
    comment = [attribute.docstring.value] if attribute.docstring else []
    heading = f"{'#' * level} `{name}` {{ #{module.path}.{name} data-toc-label='{name}' }}"
    return join([heading, *comment, "```python\n" + re.sub(r"  # .*", "", "\n".join(shown)) + "\n```"]).rstrip()


# commands and methods


def make_command_page() -> str:
    """Return a page with every command, its arguments and options, from the parser itself."""
    from caprompt.cli.app import app

    text = app.generate_docs(output_format="markdown").replace("# caprompt\n", "# Commands\n", 1)
    text = re.sub(r"^## Table of Contents\n.*?(?=^\*\*Commands)", "", text, flags=re.MULTILINE | re.DOTALL)  # the site has one
    text = re.sub(r" \*\[default: False\]\*$", "", text, flags=re.MULTILINE)  # of flags
    return re.sub(r"^\*\*(\w+)\*\*:$", r"**\1**", text, flags=re.MULTILINE)


def make_method_page() -> str:
    """Return a page with every method, and the options that it has beyond those of all methods."""
    from caprompt.methods import list_methods
    from caprompt.methods.options import Options, describe_options

    common = describe_options(Options)
    lines = [
        "# Methods and their options",
        "Options are given as `--set key=value`, in a file with `--config`, or as keyword arguments of `ContinualClassifier`.",
        "## Options of all methods { #all }",
        make_table(common),
    ]
    for name, method in list_methods().items():
        others = [row for row in describe_options(method.options_class) if row not in common]
        lines += [f"## `{name}` {{ #{name} }}"]
        lines += [f"{method.summary[:1].upper()}{method.summary[1:]}: [its page](../methods/{name}.md)."]
        lines += [make_table(others)] if others else ["It has the options of all methods only."]
    return join(lines)


def make_table(rows: list[tuple[str, str, str, str]]) -> str:
    """Return options as a table."""
    cells = [[f"`{name}`", values, f"`{default}`", meaning] for name, values, default, meaning in rows]
    lines = [["option", "values", "default", "meaning"], ["---"] * 4]
    lines += [[cell.replace("|", "\\|") for cell in row] for row in cells]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def join(paragraphs: list[str]) -> str:
    """Return paragraphs as a text."""
    return "\n\n".join(paragraphs) + "\n"


def main() -> None:
    """Write the pages."""
    parser = argparse.ArgumentParser(description="Write the reference of the site.")
    parser.add_argument("--docs", type=Path, default=ROOT / "docs")
    pages = write_pages(parser.parse_args().docs / "reference")
    print(f"saved {len(pages)} pages in {pages[0].parent}")


if __name__ == "__main__":
    main()
