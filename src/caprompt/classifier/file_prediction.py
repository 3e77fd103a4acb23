"""Predictions for image files, in chunks, so that any number of any size fits in memory.

A chunk of files is predicted as a whole, decoded in threads while the network runs. Where one of them cannot be read, the images of
the chunk are decoded one by one, to tell which, and the others are predicted.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Any

from caprompt.classifier.model import ContinualClassifier
from caprompt.data.images import SKIP_HINT, Pixels, decode
from caprompt.data.remote_images import is_address, read_remote_image
from caprompt.engine.inputs import DECODE_FACTOR
from caprompt.errors import DataError
from caprompt.outputs import Prediction

__all__ = ["ImageName", "predict_each", "predict_files"]

CHUNK_IMAGES = 512  # files predicted at a time
CHUNK_BYTES = 256 * 1024**2  # of decoded images; the last one of a chunk may exceed it

ImageName = Path | str  # of a file, or of one at an address


def predict_files(
    model: ContinualClassifier, names: Sequence[ImageName], top: int, skip_bad: bool, options: Mapping[str, Any]
) -> tuple[list[tuple[ImageName, Prediction]], list[str]]:
    """Return the predictions for readable images, and a message for each unreadable one; without `skip_bad`, raise on these."""
    predictions: list[tuple[ImageName, Prediction]] = []
    skipped: list[str] = []
    for name, outcome in predict_each(model, names, top, options, skip_bad):
        if isinstance(outcome, Prediction):
            predictions.append((name, outcome))
        else:
            skipped.append(str(outcome))
    if not predictions:
        raise DataError("none of the images can be read")
    return predictions, skipped


def predict_each(
    model: ContinualClassifier, names: Iterable[ImageName], top: int, options: Mapping[str, Any], skip_bad: bool = True
) -> Iterator[tuple[ImageName, Prediction | DataError]]:
    """Yield each image in order, with its prediction, or with why it cannot be read; without `skip_bad`, raise that at once.

    A `StorageError` is no fault of the image: it may be readable later.
    """
    remaining = iter(names)
    while chunk := list(islice(remaining, CHUNK_IMAGES)):
        predictions = _predict_all(model, chunk, top, options)
        if predictions is None:
            yield from _predict_readable(model, chunk, top, options, skip_bad)
        else:
            yield from zip(chunk, predictions, strict=True)


def _predict_all(
    model: ContinualClassifier, names: Sequence[ImageName], top: int, options: Mapping[str, Any]
) -> Sequence[Prediction] | None:
    """Predict files of this machine, or return None if one of them cannot be read or is elsewhere."""
    if any(isinstance(name, str) and is_address(name) for name in names):
        return None
    with suppress(DataError):
        return model.predict([Path(name) for name in names], top=top, **options)
    return None


def _predict_readable(
    model: ContinualClassifier, names: Iterable[ImageName], top: int, options: Mapping[str, Any], skip_bad: bool
) -> Iterator[tuple[ImageName, Prediction | DataError]]:
    """Yield each image with its prediction, or with why it cannot be read."""
    for chunk in _decode_chunks(model, names, skip_bad):
        pixels = [image for _, image in chunk if not isinstance(image, DataError)]
        outcomes = iter(model.predict(pixels, top=top, **options) if pixels else [])
        pixels.clear()
        named = [(name, image if isinstance(image, DataError) else next(outcomes)) for name, image in chunk]
        chunk.clear()  # before the next one is decoded
        yield from named


def _decode_chunks(
    model: ContinualClassifier, names: Iterable[ImageName], skip_bad: bool
) -> Iterator[list[tuple[ImageName, Pixels | DataError]]]:
    """Yield images and their pixels, as many at a time as fit in memory."""
    chunk: list[tuple[ImageName, Pixels | DataError]] = []
    num_bytes = 0
    for name in names:
        image = _try_decode(name, DECODE_FACTOR * model.backbone.config.image_size)
        if not isinstance(image, DataError):
            num_bytes += image.nbytes
        elif not skip_bad:
            raise image
        chunk.append((name, image))
        if num_bytes >= CHUNK_BYTES:
            yield chunk
            chunk, num_bytes = [], 0
    if chunk:
        yield chunk


def _try_decode(name: ImageName, shrink_to: int) -> Pixels | DataError:
    try:
        if isinstance(name, str) and is_address(name):
            return _decode_remote(name, shrink_to)
        return decode(Path(name), shrink_to=shrink_to)
    except DataError as error:
        return error


def _decode_remote(address: str, shrink_to: int) -> Pixels:
    image = read_remote_image(address)
    try:
        return decode(image, shrink_to=shrink_to)
    except DataError as error:
        reason = str(error).partition("(")[2].rpartition(")")[0]
        raise DataError(f"'{address}' is not a readable image ({reason}){SKIP_HINT}") from error
