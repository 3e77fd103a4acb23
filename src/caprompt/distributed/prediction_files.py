"""Files of predictions: JSON lines or Parquet, a row for each image in the order of their paths, also for unreadable ones.

path     of the image, as it was found
label    the predicted class; null for an unreadable image, as are all others but `error`
score    its probability
top      the most likely classes: label and score of each
unknown  whether the image is probably of none of the learned classes
set      the classes that hold the true one with the probability that was asked for; empty where none was
passes   forward passes that it took
error    why the image cannot be read; null for a readable one
"""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from caprompt.data.images import SKIP_HINT
from caprompt.data.labels import Label
from caprompt.errors import InputError, ModelFolderError
from caprompt.outputs import Prediction
from caprompt.utils.text import escape_bytes

__all__ = ["SUFFIXES", "check_format", "make_row", "merge_parts", "read_part", "write_part"]

JSON_LINES, PARQUET = ".jsonl", ".parquet"
SUFFIXES = (JSON_LINES, PARQUET)


def check_format(path: Path) -> None:
    """Raise if a file of predictions cannot be written under this name."""
    if path.suffix.lower() not in SUFFIXES:
        raise InputError(f"predictions are written as Parquet or JSON lines; choose a name that ends with {' or '.join(SUFFIXES)}")
    if path.suffix.lower() == PARQUET:
        _import_parquet()


def make_row(name: Path | str, outcome: Prediction | Exception) -> dict[str, Any]:
    """Return the row of an image."""
    row: dict[str, Any] = {"path": escape_bytes(str(name))}
    if isinstance(outcome, Exception):
        reason = str(outcome).removesuffix(SKIP_HINT)
        return row | dict.fromkeys(("label", "score", "top", "unknown", "set", "passes")) | {"error": escape_bytes(reason)}
    top = [{"label": each.label, "score": each.score} for each in outcome.top]
    own = {"label": outcome.label, "score": outcome.score, "top": top, "unknown": outcome.unknown}
    return row | own | {"set": list(outcome.prediction_set), "passes": outcome.passes, "error": None}


def write_part(path: Path, rows: Iterable[dict[str, Any]]) -> None:
    """Write rows as JSON lines, atomically; the folder must exist.

    Another process may write the same part at the same time, if it was taken for dead: each has a draft of its own.
    """
    draft = path.with_name(f".{path.name}.{secrets.token_hex(8)}.next")
    try:
        _write_json_lines([list(rows)], draft)
        _sync(draft)
        draft.replace(path)
    except OSError as error:  # that of a full disk names no file
        draft.unlink(missing_ok=True)
        raise OSError(error.errno, error.strerror, str(path.parent)) from error


def read_part(path: Path) -> list[dict[str, Any]]:
    """Read the rows of a part."""
    try:
        return [json.loads(line) for line in path.read_bytes().splitlines()]
    except (OSError, ValueError) as error:
        raise ModelFolderError(f"'{path}' cannot be read; remove it and run the same command again") from error


def merge_parts(parts: Iterable[Sequence[dict[str, Any]]], draft: Path, suffix: str, labels: Sequence[Label]) -> None:
    """Write the rows of all parts to one file, and to the disk; `labels` are all that can occur."""
    if suffix.lower() == PARQUET:
        _write_parquet(parts, draft, labels)
    else:
        _write_json_lines(parts, draft)
    _sync(draft)


def _write_json_lines(parts: Iterable[Sequence[dict[str, Any]]], draft: Path) -> None:
    with draft.open("w", encoding="utf-8") as file:
        for rows in parts:
            file.writelines(json.dumps(row) + "\n" for row in rows)


def _sync(path: Path) -> None:
    """Wait until a file is on the disk: before it gets its name, so that a power loss leaves none that is half empty."""
    with path.open("rb+") as file:
        os.fsync(file.fileno())


def _write_parquet(parts: Iterable[Sequence[dict[str, Any]]], draft: Path, labels: Sequence[Label]) -> None:
    """Write a row group for each part; labels are integers if all of them are, else text."""
    pa, pq = _import_parquet()
    is_number = all(isinstance(label, int) for label in labels)
    label = pa.int64() if is_number else pa.string()
    top = pa.list_(pa.struct([("label", label), ("score", pa.float64())]))
    columns = [("path", pa.string()), ("label", label), ("score", pa.float64()), ("top", top), ("unknown", pa.bool_())]
    schema = pa.schema([*columns, ("set", pa.list_(label)), ("passes", pa.int32()), ("error", pa.string())])
    with pq.ParquetWriter(draft, schema) as writer:
        for rows in parts:
            writer.write_table(pa.Table.from_pylist(list(rows if is_number else map(_to_text, rows)), schema=schema))


def _to_text(row: dict[str, Any]) -> dict[str, Any]:
    """Return a row whose labels are all text."""
    if row["label"] is None:
        return row
    top = [{**each, "label": escape_bytes(str(each["label"]))} for each in row["top"]]
    return {**row, "label": escape_bytes(str(row["label"])), "top": top, "set": [escape_bytes(str(each)) for each in row["set"]]}


def _import_parquet() -> tuple[Any, Any]:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        raise InputError(
            "Parquet needs the package pyarrow: pip install 'caprompt[cluster]', or choose a name that ends with .jsonl"
        ) from None
    return pyarrow, pyarrow.parquet
