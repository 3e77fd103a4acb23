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
    """Predict the classes of images: files, or folders of them.

    Examples:

        caprompt predict pets cat.jpg
        caprompt predict pets holiday/ --json --top 5
        caprompt predict pets cat.jpg --cycles auto

    Parameters
    ----------
    model
        Folder of the model.
    images
        Image files, or folders of them at any depth.
    top
        Number of classes to print per image.
    backbone
        Weights file of the backbone, if it was moved.
    """
    from caprompt.classifier import ContinualClassifier
    from caprompt.cli.tables import make_prediction_table
    from caprompt.data.sources import list_images

    classifier = ContinualClassifier.load(model, backbone=backbone, device=device)
    predictions, skipped = predict_files(classifier, list_images(images), top, skip_bad, parse_cycles(cycles))
    print_skipped(skipped)
    mark = print_protocol_warning(classifier)
    if as_json:
        print(json.dumps([{"image": str(path), **prediction.as_dict(), **mark} for path, prediction in predictions], indent=2))
    else:
        out.print(make_prediction_table([str(path) for path, _ in predictions], [each for _, each in predictions], top))


def predict_files(
    model: ContinualClassifier, paths: Sequence[Path], top: int, skip_bad: bool, options: Mapping[str, Any]
) -> tuple[list[tuple[Path, Prediction]], list[str]]:
    """Return the predictions for readable images, and a message for each unreadable one; without `skip_bad`, raise on these."""
    from caprompt.data.images import decode
    from caprompt.engine.inputs import DECODE_FACTOR

    predictions: list[tuple[Path, Prediction]] = []
    skipped: list[str] = []
    for start in range(0, len(paths), CHUNK):
        readable, pixels = [], []
        for path in paths[start : start + CHUNK]:
            try:
                pixels.append(decode(path, shrink_to=DECODE_FACTOR * model.backbone.config.image_size))
                readable.append(path)
            except DataError as error:
                if not skip_bad:
                    raise
                skipped.append(str(error))
        if readable:
            predictions.extend(zip(readable, model.predict(pixels, top=top, **options), strict=True))
    if not predictions:
        raise DataError("none of the images can be read")
    return predictions, skipped
