"""Image classification datasets of the Hugging Face Hub, as `hf:owner/name`.

They are loaded through the package `datasets` (extra "hub"). The images are written once to the
data folder, a folder per class; from then on no network is needed.
"""

from __future__ import annotations

import importlib
import re
import tempfile
from pathlib import Path
from typing import Any

from caprompt.data.datasets._locations import get_data_folders
from caprompt.data.samples import Samples
from caprompt.data.sources import read_source
from caprompt.errors import DataError, first_line

__all__ = ["PREFIX", "load_hugging_face"]

PREFIX = "hf:"


def load_hugging_face(name: str) -> tuple[Samples, Samples | None]:
    """Load training and test samples of "owner/name"; test is None if no split suits."""
    if not re.fullmatch(r"[\w.-]+(/[\w.-]+)?", name) or ".." in name:
        raise DataError(f"'{PREFIX}{name}' is not a dataset of the Hugging Face Hub; write {PREFIX}owner/name")
    candidates = [folder / "hf" / name.replace("/", "--") for folder in get_data_folders()]
    folder = next((path for path in candidates if path.is_dir()), None) or _download(name, candidates[0])
    return read_source(folder / "train"), read_source(folder / "test") if (folder / "test").is_dir() else None


def _download(name: str, folder: Path) -> Path:
    try:
        hub: Any = importlib.import_module("datasets")
    except ImportError as error:
        raise DataError(f"'{PREFIX}{name}' needs the package 'datasets'; install it with: pip install 'caprompt[hub]'") from error
    try:
        splits = hub.load_dataset(name)
    except Exception as error:  # offline, unknown, private or without a configuration: the message says which
        raise DataError(f"'{PREFIX}{name}' cannot be loaded from the Hugging Face Hub: {first_line(error)}") from error
    if "train" not in splits:
        raise DataError(f"'{PREFIX}{name}' has no split 'train', but {', '.join(sorted(splits))}; choose another dataset")
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".writing-", dir=folder.parent) as temporary:
        inner = Path(temporary, "data")
        _write_split(splits["train"], inner / "train", name, hub)
        for split in ("test", "validation", "valid", "val"):
            if split in splits and not (inner / "test").exists():  # a test split with hidden labels writes no folder
                _write_split(splits[split], inner / "test", name, hub)
        inner.rename(folder)
    return folder


def _write_split(rows: Any, folder: Path, name: str, hub: Any) -> None:
    """Write the images of one split with the bytes they are stored as."""
    image_columns = [column for column, kind in rows.features.items() if isinstance(kind, hub.Image)]
    label_columns = [column for column, kind in rows.features.items() if isinstance(kind, hub.ClassLabel)]
    if not image_columns or not label_columns:
        raise DataError(
            f"'{PREFIX}{name}' has no {'images' if not image_columns else 'class labels'} in its columns "
            f"({', '.join(rows.features)}); choose a dataset for image classification"
        )
    # The finest labels have the most names. An index separates names that are equal as folders.
    label = max(label_columns, key=lambda column: len(rows.features[column].names))
    names = [_make_folder_name(text) for text in rows.features[label].names]
    if len(set(names)) != len(names):
        names = [f"{index} {text}" for index, text in enumerate(names)]
    for number, row in enumerate(rows.cast_column(image_columns[0], hub.Image(decode=False))):
        if row[label] is None or row[label] < 0:
            continue  # some test splits have hidden labels
        stored = row[image_columns[0]]
        content = stored["bytes"] if stored["bytes"] is not None else Path(stored["path"]).read_bytes()
        suffix = Path(stored["path"] or "").suffix.lower()
        target = folder / names[row[label]] / f"{number:07d}{suffix if suffix in ('.jpg', '.jpeg', '.webp') else '.png'}"
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(content)


def _make_folder_name(text: str) -> str:
    return re.sub(r'[<>:"/\\|?*\x00-\x1f\x7f]', "-", text).strip(" .") or "unnamed"
