"""Naming pictures: files and folders of them, decoded in chunks, so that any number fits in memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from caprompt.classifier import ContinualClassifier
from caprompt.data.images import IMAGE_SUFFIXES, decode
from caprompt.engine.inputs import DECODE_FACTOR
from caprompt.errors import DataError, InputError
from caprompt.outputs import Prediction

__all__ = ["name_pictures", "pictures_in"]

CHUNK = 512


def pictures_in(places: Sequence[Path]) -> list[Path]:
    """Image files, and those in folders at any depth."""
    if not places:
        raise InputError("no image was given; name files or folders of them")
    found: list[Path] = []
    for place in places:
        if place.is_dir():
            inside = sorted(path for path in place.rglob("*") if path.suffix.lower() in IMAGE_SUFFIXES and path.is_file())
            if not inside:
                raise DataError(f"there is no image in the folder '{place}'")
            found.extend(inside)
        else:
            found.append(place)
    return found


def name_pictures(
    model: ContinualClassifier, paths: Sequence[Path], top: int, skip_bad: bool, options: Mapping[str, Any]
) -> tuple[list[tuple[Path, Prediction]], list[str]]:
    """Predictions for the pictures that can be read, and a sentence about each that cannot (without `skip_bad`, an error)."""
    found: list[tuple[Path, Prediction]] = []
    skipped: list[str] = []
    for start in range(0, len(paths), CHUNK):
        good, pixels = [], []
        for path in paths[start : start + CHUNK]:
            try:
                pixels.append(decode(path, shrink_to=DECODE_FACTOR * model.backbone.config.image_size))
                good.append(path)
            except DataError as error:
                if not skip_bad:
                    raise
                skipped.append(str(error))
        if good:
            found.extend(zip(good, model.predict(pixels, top=top, **options), strict=True))
    if not found:
        raise DataError("none of the images can be read")
    return found, skipped
