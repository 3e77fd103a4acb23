"""The command `predict`: classify image files, decoded in chunks so that any number of them fits in memory."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from caprompt.cli.arguments import AsJson, Cycles, Device, SkipBad, parse_cycles
from caprompt.cli.console import out, print_protocol_warning, print_skipped
from caprompt.errors import DataError

if TYPE_CHECKING:
    from caprompt.classifier import ContinualClassifier
    from caprompt.outputs import Prediction

__all__ = ["predict"]

CHUNK = 512  # images decoded at a time


def predict(
    model: Path,
    *images: Path,
    top: int = 3,
    as_json: AsJson = False,
    skip_bad: SkipBad = False,
    cycles: Cycles = None,
    backbone: str | None = None,
    device: Device = "auto",
) -> None:
    """Name what is on images: files, or folders of them.

    Examples:

        caprompt predict pets cat.jpg
        caprompt predict pets holiday/ --json --top 5
        caprompt predict pets cat.jpg --cycles auto

    Parameters
    ----------
    model
        The model's folder.
    images
        Image files, or folders of them at any depth.
    top
        How many classes to name per image.
    backbone
        Where the backbone's file is, if it has moved.
    """
    from caprompt.classifier import ContinualClassifier
    from caprompt.cli.tables import prediction_table
    from caprompt.data.sources import list_images

    classifier = ContinualClassifier.load(model, backbone=backbone, device=device)
    named, skipped = predict_files(classifier, list_images(images), top, skip_bad, parse_cycles(cycles))
    print_skipped(skipped)
    mark = print_protocol_warning(classifier)
    if as_json:
        print(json.dumps([{"image": str(path), **found.as_dict(), **mark} for path, found in named], indent=2))
    else:
        out.print(prediction_table([str(path) for path, _ in named], [found for _, found in named], top))


def predict_files(
    model: ContinualClassifier, paths: Sequence[Path], top: int, skip_bad: bool, options: Mapping[str, Any]
) -> tuple[list[tuple[Path, Prediction]], list[str]]:
    """Predictions for the pictures that can be read, and a sentence about each that cannot (without `skip_bad`, an error)."""
    from caprompt.data.images import decode
    from caprompt.engine.inputs import DECODE_FACTOR

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
