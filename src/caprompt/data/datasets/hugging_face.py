"""Any image data set on the Hugging Face hub, as `hf:owner/name`, through the package `datasets` (the extra "hub").

Its images are written once as files, a folder per class, into the data folder; from then on no network is needed.
"""

from __future__ import annotations

import importlib
import re
import tempfile
from pathlib import Path
from typing import Any

from caprompt.data.datasets._locations import data_folders
from caprompt.data.samples import Samples
from caprompt.data.sources import read_source
from caprompt.errors import DataError

__all__ = ["PREFIX", "load_hugging_face"]

PREFIX = "hf:"


def load_hugging_face(name: str) -> tuple[Samples, Samples | None]:
    """Training and test images of "owner/name"; no test images where it has neither a test nor a validation part."""
    if not re.fullmatch(r"[\w.-]+(/[\w.-]+)?", name) or ".." in name:
        raise DataError(f"'{PREFIX}{name}' is not a data set of the Hugging Face hub; write {PREFIX}owner/name")
    places = [place / "hf" / name.replace("/", "--") for place in data_folders()]
    folder = next((place for place in places if place.is_dir()), None) or _written(name, places[0])
    return read_source(folder / "train"), read_source(folder / "test") if (folder / "test").is_dir() else None


def _written(name: str, folder: Path) -> Path:
    try:
        hub: Any = importlib.import_module("datasets")
    except ImportError as error:
        raise DataError(f"'{PREFIX}{name}' needs the package 'datasets'; install it with: pip install 'caprompt[hub]'") from error
    try:
        parts = hub.load_dataset(name)
    except Exception as error:  # offline, unknown, private, in need of a configuration: the package says which
        reason = str(error).strip().split("\n")[0] or type(error).__name__
        raise DataError(f"'{PREFIX}{name}' cannot be loaded from the Hugging Face hub: {reason}") from error
    if "train" not in parts:
        raise DataError(f"'{PREFIX}{name}' has no part 'train', but {', '.join(sorted(parts))}; choose another data set")
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".writing-", dir=folder.parent) as place:
        inner = Path(place, "data")
        _write_part(parts["train"], inner / "train", name, hub)
        for part in ("test", "validation", "valid", "val"):
            if part in parts and not (inner / "test").exists():  # a test part whose labels are hidden leaves no folder
                _write_part(parts[part], inner / "test", name, hub)
        inner.rename(folder)
    return folder


def _write_part(rows: Any, folder: Path, name: str, hub: Any) -> None:
    """The pictures of one part, as the bytes they are stored in."""
    pictures = [column for column, kind in rows.features.items() if isinstance(kind, hub.Image)]
    labels = [column for column, kind in rows.features.items() if isinstance(kind, hub.ClassLabel)]
    if not pictures or not labels:
        raise DataError(
            f"'{PREFIX}{name}' has no {'images' if not pictures else 'class labels'} in its columns "
            f"({', '.join(rows.features)}); choose a data set for image classification"
        )
    # the finest labels come with the most names; the number keeps names apart that are alike once made fit for folders
    label = max(labels, key=lambda column: len(rows.features[column].names))
    names = [_folder_name(text) for text in rows.features[label].names]
    if len(set(names)) != len(names):
        names = [f"{number} {text}" for number, text in enumerate(names)]
    for number, row in enumerate(rows.cast_column(pictures[0], hub.Image(decode=False))):
        if row[label] is None or row[label] < 0:
            continue  # hidden labels, as some test parts have them
        stored = row[pictures[0]]
        content = stored["bytes"] if stored["bytes"] is not None else Path(stored["path"]).read_bytes()
        suffix = Path(stored["path"] or "").suffix.lower()
        target = folder / names[row[label]] / f"{number:07d}{suffix if suffix in ('.jpg', '.jpeg', '.webp') else '.png'}"
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(content)


def _folder_name(text: str) -> str:
    return re.sub(r'[<>:"/\\|?*\x00-\x1f\x7f]', "-", text).strip(" .") or "unnamed"
