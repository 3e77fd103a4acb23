"""Train/test splits for datasets without an official one: by a fixed rule, or by lists of files.

The rule (`split_stratified`): of every class of n images, n / 5 are test images, rounded so that
the test set has a fifth of all images (the classes with the largest remainders round up, ties in
order of the names). Within a class, the test images are those with the smallest SHA-256 of
"<seed>:<class>/<file>". So the split depends on file names only, not on a machine, a library
version or a random generator.
"""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Sequence
from fractions import Fraction
from pathlib import Path, PurePosixPath

from caprompt.errors import DataError
from caprompt.utils.files import write_bytes

__all__ = ["read_file_list", "split_stratified", "write_file_list"]


def split_stratified(files: Sequence[str], seed: int = 0, share: Fraction = Fraction(1, 5)) -> tuple[list[str], list[str]]:
    """Split files named "<class>/<file>" into training and test files, both sorted.

    >>> split_stratified([f"{name}/{i}.jpg" for name in "ab" for i in range(5)])[1]
    ['a/3.jpg', 'b/3.jpg']
    """
    classes: dict[str, list[str]] = defaultdict(list)
    for file in sorted(files):
        classes[file.split("/")[0]].append(file)
    exact = {name: share * len(members) for name, members in classes.items()}
    count = {name: int(value) for name, value in exact.items()}
    by_remainder = sorted(classes, key=lambda name: (count[name] - exact[name], name))
    for name in by_remainder[: int(share * len(files)) - sum(count.values())]:
        count[name] += 1
    test = {file for name, members in classes.items() for file in sorted(members, key=lambda f: _rank(f, seed))[: count[name]]}
    return [file for file in sorted(files) if file not in test], sorted(test)


def read_file_list(path: Path) -> list[str]:
    """Read a list of files as "<class>/<file>".

    The list has lines "path" or "path label", or is YAML with the paths under `data:`.
    """
    try:
        text = path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise DataError(f"'{path}' is not a UTF-8 text file; give a list of files") from error
    items = _parse_yaml(text) if path.suffix.lower() in (".yaml", ".yml") else _parse_text(text)
    files = ["/".join(PurePosixPath(item.replace("\\", "/")).parts[-2:]) for item in items]
    for file in files:
        if file.count("/") != 1 or ".." in file.split("/"):
            raise DataError(f"'{path}' lists '{file}', which is not of the form class/file; list one image per line")
    if not files:
        raise DataError(f"'{path}' lists no images; list one image per line, or as YAML under 'data:'")
    if len(set(files)) != len(files):
        raise DataError(f"'{path}' lists {len(files) - len(set(files))} image(s) twice; list each once")
    return files


def write_file_list(path: Path, files: Sequence[str]) -> None:
    """Write one file per line, atomically."""
    write_bytes(path, "".join(f"{file}\n" for file in files).encode())


def _rank(file: str, seed: int) -> bytes:
    return hashlib.sha256(f"{seed}:{file}".encode()).digest()


def _parse_text(text: str) -> list[str]:
    rows = (line.split() for line in text.splitlines() if line.strip() and not line.startswith("#"))
    return [" ".join(row[:-1]) if len(row) > 1 and row[-1].isdecimal() else " ".join(row) for row in rows]


def _parse_yaml(text: str) -> list[str]:
    """Parse the strings under `data:`, one per line or in brackets; other YAML is not supported."""
    lines = text.splitlines()
    start = next((number for number, line in enumerate(lines) if line.startswith("data:")), len(lines))
    items: list[str] = []
    for number, line in enumerate(lines[start:]):
        if number and line[:1].isalpha():
            break  # the next key, `targets:`
        items += line.removeprefix("data:").strip().removeprefix("- ").strip("[]").split(",")
    return [item.strip().strip("'\"") for item in items if item.strip().strip("[]'\"")]
