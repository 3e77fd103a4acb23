"""Which images are for training and which for the test, where a data set's makers do not say: by a rule, or by lists of files.

The rule (`stratified`): of every class of n images, n / 5 go to the test, rounded so that the test has a fifth of all (classes with
the largest remainders round up, the earlier class first). Within a class, the test images are those whose SHA-256 of
"<seed>:<class>/<file>" is smallest. So the split depends on names alone: no machine, library or random generator changes it.
"""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Sequence
from fractions import Fraction
from pathlib import Path, PurePosixPath

from caprompt.errors import DataError

__all__ = ["read_list", "stratified", "write_list"]


def stratified(files: Sequence[str], seed: int = 0, share: Fraction = Fraction(1, 5)) -> tuple[list[str], list[str]]:
    """Training and test files, both sorted, of files written "<class>/<file>".

    >>> stratified([f"{name}/{i}.jpg" for name in "ab" for i in range(5)])[1]
    ['a/3.jpg', 'b/3.jpg']
    """
    classes: dict[str, list[str]] = defaultdict(list)
    for file in sorted(files):
        classes[file.split("/")[0]].append(file)
    exact = {name: share * len(members) for name, members in classes.items()}
    number = {name: int(value) for name, value in exact.items()}
    by_remainder = sorted(classes, key=lambda name: (number[name] - exact[name], name))
    for name in by_remainder[: int(share * len(files)) - sum(number.values())]:
        number[name] += 1
    test = {file for name, members in classes.items() for file in sorted(members, key=lambda f: _rank(f, seed))[: number[name]]}
    return [file for file in sorted(files) if file not in test], sorted(test)


def read_list(path: Path) -> list[str]:
    """The files of a list as "<class>/<file>": a line "path" or "path label" each, or YAML with the paths under `data:`."""
    try:
        text = path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise DataError(f"'{path}' is not a UTF-8 text file; give a list of files") from error
    lines = _yaml_items(text) if path.suffix.lower() in (".yaml", ".yml") else _text_items(text)
    files = ["/".join(PurePosixPath(line.replace("\\", "/")).parts[-2:]) for line in lines]
    for file in files:
        if file.count("/") != 1 or ".." in file.split("/"):
            raise DataError(f"'{path}' lists '{file}', which is not of the form class/file; one image a line is expected")
    if not files:
        raise DataError(f"'{path}' lists no images; one image a line is expected, or YAML with the images under 'data:'")
    if len(set(files)) != len(files):
        raise DataError(f"'{path}' lists {len(files) - len(set(files))} image(s) twice; list each once")
    return files


def write_list(path: Path, files: Sequence[str]) -> None:
    """One file a line; the list appears whole or not at all."""
    part = path.with_name(f".{path.name}.next")
    part.write_text("".join(f"{file}\n" for file in files), encoding="utf-8")
    part.replace(path)


def _rank(file: str, seed: int) -> bytes:
    return hashlib.sha256(f"{seed}:{file}".encode()).digest()


def _text_items(text: str) -> list[str]:
    rows = (line.split() for line in text.splitlines() if line.strip() and not line.startswith("#"))
    return [" ".join(row[:-1]) if len(row) > 1 and row[-1].isdecimal() else " ".join(row) for row in rows]


def _yaml_items(text: str) -> list[str]:
    """The strings under `data:`, a line each or in brackets: all of YAML that these lists use."""
    lines = text.splitlines()
    start = next((number for number, line in enumerate(lines) if line.startswith("data:")), len(lines))
    items: list[str] = []
    for number, line in enumerate(lines[start:]):
        if number and line[:1].isalpha():
            break  # the next key, `targets:`
        items += line.removeprefix("data:").strip().removeprefix("- ").strip("[]").split(",")
    return [item.strip().strip("'\"") for item in items if item.strip().strip("[]'\"")]
