"""Files about the mistakes of a model: the list of wrong images (CSV) and the confusion matrix (CSV or PNG)."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Sequence
from pathlib import Path

from caprompt.errors import InputError
from caprompt.outputs import Evaluation
from caprompt.protocols import format_percent_title
from caprompt.utils import files
from caprompt.utils.spreadsheets import escape_formula

__all__ = ["MAX_MATRIX_CLASSES", "check_export", "check_matrix_size", "write_confusion", "write_wrong"]

MAX_MATRIX_CLASSES = 1000  # of more classes, a matrix is neither a useful table nor a useful image
MAX_LABELED_CLASSES = 60  # of more classes, the names on the axes would overlap
MAX_COUNTED_CLASSES = 25  # of more classes, the numbers in the cells would overlap


def check_export(path: Path, suffixes: Sequence[str], flag: str) -> None:
    """Raise for a path that cannot be written or whose suffix is not one of these; done before any image is read."""
    if path.suffix.lower() not in suffixes:
        raise InputError(f"{flag} writes {' or '.join(suffixes)} files; '{path}' has another ending")
    if path.is_dir():
        raise InputError(f"{flag} cannot write '{path}': it is a folder; give the path of a file")


def check_matrix_size(path: Path, num_classes: int) -> None:
    """Raise for a confusion matrix that is too large for an image."""
    if path.suffix.lower() == ".png" and num_classes > MAX_MATRIX_CLASSES:
        raise InputError(
            f"'{path}' would show {num_classes:,} classes, more than {MAX_MATRIX_CLASSES:,}; write a .csv file instead"
        )


def write_wrong(evaluation: Evaluation, path: Path) -> None:
    """Write a row per wrong image: path, label, predicted, score; it can be read as a source of labeled images in turn.

    Paths are relative to the file where the images are below its folder, and absolute elsewhere.
    """
    rows = [
        [_format_path(mistake.path, path.parent), escape_formula(mistake.label), escape_formula(mistake.predicted), mistake.score]
        for mistake in evaluation.mistakes
    ]
    _write_csv(path, [["path", "label", "predicted", "score"], *rows])


def write_confusion(evaluation: Evaluation, path: Path) -> None:
    """Write the confusion matrix, the true classes in rows: as CSV or as PNG, by the suffix of the path.

    Of more than `MAX_MATRIX_CLASSES`, a CSV has a row per pair of classes instead: label, predicted, images.
    """
    num_classes = len(evaluation.images_per_class)
    check_matrix_size(path, num_classes)
    if path.suffix.lower() == ".png":
        files.write_bytes(path, _draw_matrix(evaluation))
    else:
        _write_csv(path, _list_pairs(evaluation) if num_classes > MAX_MATRIX_CLASSES else _list_rows(evaluation))


def _list_rows(evaluation: Evaluation) -> Iterable[Sequence[object]]:
    """Yield the rows of the matrix, with headings."""
    classes = list(evaluation.images_per_class)
    yield ["label", *map(escape_formula, classes)]
    for label in classes:
        row = evaluation.confusion.get(label, {})
        yield [escape_formula(label), *(row.get(predicted, 0) for predicted in classes)]


def _list_pairs(evaluation: Evaluation) -> Iterable[Sequence[object]]:
    """Yield a row per pair of classes that has images, with headings."""
    yield ["label", "predicted", "images"]
    for label, row in evaluation.confusion.items():
        for predicted, count in row.items():
            yield [escape_formula(label), escape_formula(predicted), count]


def _format_path(path: str | None, folder: Path) -> str:
    if path is None:  # an image in memory
        return ""
    absolute, base = Path(path).resolve(), folder.resolve()
    relative = absolute.relative_to(base).as_posix() if absolute.is_relative_to(base) else str(absolute)
    return relative if escape_formula(relative) == relative else f"./{relative}"


def _write_csv(path: Path, rows: Iterable[Sequence[object]]) -> None:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    files.write_bytes(path, text.getvalue().encode("utf-8", "surrogateescape"))  # a file name need not be valid UTF-8


def _draw_matrix(evaluation: Evaluation) -> bytes:
    """Draw the matrix as PNG: colors are shares of the images of a class, numbers are images."""
    import numpy as np
    from matplotlib.figure import Figure

    classes = list(evaluation.images_per_class)
    index = {name: number for number, name in enumerate(classes)}
    counts = np.zeros((len(classes), len(classes)), dtype=np.int64)
    for label, row in evaluation.confusion.items():
        for predicted, count in row.items():
            counts[index[label], index[predicted]] = count
    shares = 100 * counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)

    side = min(max(4.0, 0.34 * len(classes) + 2), 16.0)
    figure = Figure(figsize=(side + 1, side), dpi=130, layout="constrained")
    axes = figure.subplots()
    image = axes.imshow(shares, cmap="Blues", vmin=0, vmax=100, interpolation="nearest")
    title = format_percent_title("share of the images of each class", evaluation.protocol)
    axes.set(xlabel="predicted", ylabel="class", title=f"{title}\n{evaluation.images:,} images")
    if len(classes) <= MAX_LABELED_CLASSES:
        names = [name.replace("$", r"\$") for name in classes]  # matplotlib reads $ as the start of a formula
        axes.set_xticks(range(len(classes)), names, rotation=90)
        axes.set_yticks(range(len(classes)), names)
    if len(classes) <= MAX_COUNTED_CLASSES:
        for row_number, column in zip(*np.nonzero(counts), strict=True):
            ink = "white" if shares[row_number, column] > 55 else "black"
            axes.text(column, row_number, str(counts[row_number, column]), ha="center", va="center", color=ink, fontsize=8)
    figure.colorbar(image, ax=axes, shrink=0.7)
    content = io.BytesIO()
    figure.savefig(content, format="png")
    return content.getvalue()
