"""Files of the labeling tools FiftyOne and Label Studio: labeled images from their exports, predictions as pre-labels for them.

Read are, by their content:

    FiftyOne       labels.json of FiftyOneImageClassificationDataset, samples.json of FiftyOneDataset, and CSVDataset
    Label Studio   the exports JSON, JSON-MIN and CSV of a project with one `Choices` control

The images are looked for where the file says, and else by their name in the folder of the file and in its sub-folders `data` and
`images`. Images without a label are left out. Nothing is downloaded.
"""

from __future__ import annotations

import csv
import io
import json
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import parse_qs, quote, unquote, urlsplit

from caprompt.data.class_names import check_class_name
from caprompt.data.formats import is_image_name
from caprompt.data.samples import Samples
from caprompt.errors import DataError, InputError, UnknownNameError
from caprompt.utils.files import read_json, write_bytes

__all__ = ["TOOLS", "PreLabel", "check_tool", "is_annotation_table", "read_annotations", "write_pre_labels"]

FIFTYONE, LABEL_STUDIO = "fiftyone", "label-studio"
TOOLS = (FIFTYONE, LABEL_STUDIO)
GROUND_TRUTH = "ground_truth"  # FiftyOne's usual field of labels
LOCAL_FILES = "/data/local-files/"  # URL under which Label Studio serves files of its own machine
DOCUMENT_ROOT = "LABEL_STUDIO_LOCAL_FILES_DOCUMENT_ROOT"  # variable with the folder that these URLs are relative to
NUM_ROWS = 20  # read to recognize a table
# Columns of Label Studio's CSV and JSON-MIN that are about the annotation.
DETAILS = frozenset({"agreement", "annotation_id", "annotator", "created_at", "id", "lead_time", "updated_at", "was_cancelled"})


class PreLabel(NamedTuple):
    """A predicted class of an image file."""

    path: Path
    label: str
    score: float


Pair = tuple[str, Any]  # where an image is, and its label: a text, several, or nothing


# -- reading ---------------------------------------------------------------------------------------------------------------


def read_annotations(file: Path) -> Samples:
    """Return the labeled images of an export."""
    pairs = list(dict.fromkeys((image, _get_one_label(label, image, file)) for image, label in _read_pairs(file)))
    labeled = [(image, label) for image, label in pairs if label]
    if not labeled:
        raise DataError(f"'{file}' has no labeled image; label some and export it again")
    for _, label in labeled:
        check_class_name(label)
    missing = len(pairs) - len(labeled)
    skipped = (f"{missing} image{'s' * (missing > 1)} in '{file}' without a label, skipped",) if missing else ()
    locate = _Locator(file)
    return Samples(tuple(locate(image) for image, _ in labeled), tuple(label for _, label in labeled), skipped)


def is_annotation_table(file: Path) -> bool:
    """Return whether a CSV file is an export of a labeling tool, from its first rows."""
    try:
        return _find_layout(_read_table(file, limit=NUM_ROWS)) is not None
    except DataError:
        return False


def _read_pairs(file: Path) -> list[Pair]:
    if file.suffix.lower() == ".csv":
        return _pair_records(_read_table(file), file)
    try:
        content = json.loads(file.read_text(encoding="utf-8-sig"))
    except (UnicodeDecodeError, ValueError) as error:
        raise DataError(f"'{file}' is not JSON in UTF-8; export it again") from error
    if isinstance(content, dict) and isinstance(content.get("labels"), dict):
        return _pair_fiftyone_labels(content)
    if isinstance(content, dict) and isinstance(content.get("samples"), list):
        return _pair_fiftyone_samples(content["samples"], file)
    if isinstance(content, list) and all(isinstance(entry, dict) for entry in content):
        if any("data" in entry for entry in content):
            return [pair for task in content for pair in _pair_task(task, file)]
        return _pair_records(content, file)
    raise DataError(f"'{file}' is no export of FiftyOne or Label Studio; give one of theirs, a folder or a CSV file of path,label")


def _get_one_label(label: Any, image: str, file: Path) -> str:
    """Return the label of an image, or an empty text; Label Studio writes several as a list, and in CSV files as JSON."""
    if isinstance(label, str) and label.startswith(("[", "{")):
        with suppress(ValueError):  # else it is a name in brackets
            label = json.loads(label)
    if isinstance(label, Mapping):
        label = label.get("choices", label.get("label"))
    if isinstance(label, list):
        if len(label) > 1:
            names = ", ".join(map(str, label))
            raise DataError(f"'{image}' in '{file}' has {len(label)} labels ({names}); keep one for each image")
        label = label[0] if label else None
    return "" if label is None else str(label).strip()


# FiftyOne


def _pair_fiftyone_labels(content: Mapping[str, Any]) -> list[Pair]:
    """Return the pairs of a labels.json: images by name without suffix or by path, labels as text or numbers of classes."""
    classes = content.get("classes")

    def get_name(target: Any) -> Any:
        if isinstance(target, list):
            return [get_name(each) for each in target]
        target = target.get("label") if isinstance(target, Mapping) else target
        is_number = isinstance(target, int) and isinstance(classes, list) and 0 <= target < len(classes)
        return classes[target] if is_number else target  # type: ignore[index]

    return [(image, get_name(target)) for image, target in content["labels"].items()]


def _pair_fiftyone_samples(samples: Sequence[Any], file: Path) -> list[Pair]:
    """Return the pairs of a samples.json: the file of each sample, and the label in its field of classifications."""
    entries = [sample for sample in samples if isinstance(sample, Mapping) and "filepath" in sample]
    fields = {name for entry in entries for name, value in entry.items() if _is_classification(value)}
    name = GROUND_TRUTH if GROUND_TRUTH in fields else next(iter(fields)) if len(fields) == 1 else None
    if name is None:
        known = f"the fields {', '.join(sorted(fields))}" if fields else "no field"
        raise DataError(f"'{file}' has {known} of classifications; export one, and name it {GROUND_TRUTH}")
    return [(str(entry["filepath"]), entry.get(name)) for entry in entries]


def _is_classification(value: Any) -> bool:
    return isinstance(value, Mapping) and value.get("_cls") == "Classification"


# Label Studio


def _pair_task(task: Mapping[str, Any], file: Path) -> list[Pair]:
    """Return the image of a task with the choices of its newest annotation that was not cancelled."""
    data = task.get("data") or {}
    image = next((value for value in data.values() if _is_image_reference(value)), None)
    if image is None:
        raise DataError(f"task {task.get('id', '?')} in '{file}' has no image in its data; export a project of images")
    annotations = [each for each in task.get("annotations") or task.get("completions") or () if not each.get("was_cancelled")]
    newest: Mapping[str, Any] = max(annotations, key=lambda each: str(each.get("created_at") or ""), default={})
    choices = [entry["value"]["choices"] for entry in newest.get("result") or () if entry.get("type") == "choices"]
    return [(image, [name for names in choices for name in names])]


def _pair_records(records: Sequence[Mapping[str, Any]], file: Path) -> list[Pair]:
    """Return the pairs of a table: rows of a CSV file, or the records of JSON-MIN."""
    layout = _find_layout(records)
    if layout is None:
        columns = ", ".join(records[0]) if records else "no columns"
        raise DataError(f"'{file}' has {columns}; an export has one column of images and one of labels besides its own")
    image, label = layout
    kept = [record for record in records if str(record.get("was_cancelled", "")).lower() != "true"]
    return [(str(record[image]), record.get(label)) for record in kept if record.get(image)]


def _find_layout(records: Sequence[Mapping[str, Any]]) -> tuple[str, str] | None:
    """Return the columns of images and labels in a table, or None if it is not from one of the tools.

    >>> _find_layout([{"image": "/data/upload/1/cat.jpg", "choice": "cat", "id": 1, "annotation_id": 5}])
    ('image', 'choice')
    >>> _find_layout([{"filepath": "cat.jpg", "ground_truth.label": "cat", "uniqueness": 0.3}])
    ('filepath', 'ground_truth.label')
    >>> _find_layout([{"path": "cat.jpg", "label": "cat"}])
    """
    columns = list(dict.fromkeys(name for record in records for name in record))
    if "filepath" in columns:
        named = [name for name in (f"{GROUND_TRUTH}.label", GROUND_TRUTH, "label") if name in columns]
        others = [name for name in columns if name.endswith(".label")]
        return ("filepath", named[0]) if named else ("filepath", others[0]) if len(others) == 1 else None
    if "annotation_id" not in columns and "annotator" not in columns:
        return None
    own = [name for name in columns if name not in DETAILS]
    images = [name for name in own if any(_is_image_reference(record.get(name)) for record in records)]
    labels = [name for name in own if name not in images]
    if len(labels) > 1:
        labels = [name for name in labels if name in ("choice", "choices", "label", "class")]
    return (images[0], labels[0]) if len(images) == 1 and len(labels) == 1 else None


def _is_image_reference(value: Any) -> bool:
    return isinstance(value, str) and is_image_name(_get_path_of_url(value))


def _read_table(file: Path, limit: int | None = None) -> list[dict[str, str]]:
    try:
        with file.open(encoding="utf-8-sig", newline="") as lines:
            return list(islice(csv.DictReader(lines, restkey=""), limit))
    except (UnicodeDecodeError, csv.Error) as error:
        raise DataError(f"'{file}' is not a CSV file in UTF-8; export it again") from error


# -- files -----------------------------------------------------------------------------------------------------------------


class _Locator:
    """Finds the image files that an export names."""

    def __init__(self, export: Path) -> None:
        self.folder = export.parent
        self.by_stem: dict[str, Path] | None = None

    def __call__(self, reference: str) -> Path:
        """Return the file that a reference means, or where it should be."""
        path = Path(_get_path_of_url(reference))
        candidates = [self.folder / path, *self._list_served(reference)]
        # Label Studio puts a few letters and a hyphen in front of the name of an uploaded file.
        for name in (path.name, re.sub(r"^[0-9a-f]{8}-", "", path.name)):
            candidates += [self.folder / name, self.folder / "data" / name, self.folder / "images" / name]
        found = next((candidate for candidate in candidates if candidate.is_file()), None)
        return found or self._find_by_stem(str(path)) or candidates[0]

    def _list_served(self, reference: str) -> list[Path]:
        """Return the file behind a URL of Label Studio's local storage."""
        inner = parse_qs(urlsplit(reference).query).get("d")
        return [Path(os.environ.get(DOCUMENT_ROOT, "/")) / inner[0]] if inner and LOCAL_FILES in reference else []

    def _find_by_stem(self, name: str) -> Path | None:
        """Return the image with a name without suffix, as in FiftyOne's labels.json: in `data`, or listed in `data.json`."""
        if self.by_stem is None:
            root = self.folder / "data"
            files = sorted(path for path in root.rglob("*") if is_image_name(path.name)) if root.is_dir() else []
            self.by_stem = {path.relative_to(root).with_suffix("").as_posix(): path for path in files}
            self.by_stem |= {stem: self.folder / str(path) for stem, path in read_json(self.folder / "data.json").items()}
        return self.by_stem.get(Path(name).as_posix())


def _get_path_of_url(reference: str) -> str:
    """Return the path in a URL, or a path as it is.

    >>> _get_path_of_url("/data/local-files/?d=my%20cats/1.jpg"), _get_path_of_url("https://example.com/a/1.jpg?key=3")
    ('my cats/1.jpg', '/a/1.jpg')
    >>> _get_path_of_url("what?.jpg")
    'what?.jpg'
    """
    parts = urlsplit(reference)
    if LOCAL_FILES in reference and "d" in parse_qs(parts.query):
        return parse_qs(parts.query)["d"][0]
    return unquote(parts.path) if "://" in reference else reference


# -- writing ---------------------------------------------------------------------------------------------------------------


def write_pre_labels(file: Path, tool: str, rows: Iterable[PreLabel]) -> None:
    """Write predictions for a labeling tool to import.

    The suffix of the file is the format: .json, or for FiftyOne also .csv.
    """
    check_tool(tool, file)
    write_bytes(file, _FORMATS[tool, file.suffix.lower()](rows).encode())


def check_tool(tool: str, file: Path) -> None:
    """Raise unless this tool is known and imports files of this name.

    >>> check_tool("fiftyone", Path("labels.json"))
    >>> check_tool("label-studio", Path("tasks.csv"))
    Traceback (most recent call last):
    caprompt.errors.InputError: label-studio cannot import predictions from 'tasks.csv'; choose a file name that ends with .json
    """
    if tool not in TOOLS:
        raise UnknownNameError("labeling tool", tool, TOOLS)
    allowed = [suffix for name, suffix in _FORMATS if name == tool]
    if file.suffix.lower() not in allowed:
        suffixes = " or ".join(allowed)
        raise InputError(f"{tool} cannot import predictions from '{file}'; choose a file name that ends with {suffixes}")


def _format_labels(rows: Iterable[PreLabel]) -> str:
    """Return a labels.json of FiftyOneImageClassificationDataset, with paths in place of names."""
    labels = {str(row.path.absolute()): {"label": row.label, "confidence": row.score} for row in rows}
    return json.dumps({"labels": labels}, indent=2, ensure_ascii=False) + "\n"


def _format_csv(rows: Iterable[PreLabel]) -> str:
    """Return a table for FiftyOne's CSVDataset."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["filepath", "label", "confidence"])
    writer.writerows([row.path.absolute(), row.label, row.score] for row in rows)
    return text.getvalue()


def _format_tasks(rows: Iterable[PreLabel]) -> str:
    """Return tasks of Label Studio, with the names of its template for image classification."""
    root = Path(os.environ.get(DOCUMENT_ROOT, "/"))
    tasks = []
    for row in rows:
        path = row.path.absolute()
        inner = path.relative_to(root if path.is_relative_to(root) else path.anchor).as_posix()
        choice = {"from_name": "choice", "to_name": "image", "type": "choices", "value": {"choices": [row.label]}}
        prediction = {"model_version": "caprompt", "score": row.score, "result": [choice]}
        tasks.append({"data": {"image": f"{LOCAL_FILES}?d={quote(inner)}"}, "predictions": [prediction]})
    return json.dumps(tasks, indent=2, ensure_ascii=False) + "\n"


_FORMATS = {(FIFTYONE, ".json"): _format_labels, (FIFTYONE, ".csv"): _format_csv, (LABEL_STUDIO, ".json"): _format_tasks}
