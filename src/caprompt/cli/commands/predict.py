"""The command `predict`: classify image files, decoded in chunks so that any number of any size fits in memory."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from caprompt.cli.arguments import AsJson, Cycles, Device, SkipBad, parse_cycles
from caprompt.cli.console import format_json, print_csv, print_protocol_warning, print_skipped, print_table, print_warnings
from caprompt.errors import DataError, OptionError
from caprompt.utils.spreadsheets import escape_formula

if TYPE_CHECKING:
    from caprompt.classifier import ContinualClassifier
    from caprompt.data.images import Pixels
    from caprompt.outputs import Prediction

__all__ = ["predict"]

CHUNK_IMAGES = 512  # images decoded at a time, at most
CHUNK_BYTES = 256 * 1024**2  # of decoded images; the last one of a chunk may exceed it


def predict(
    model: Path,
    *images: Path,
    top: int = 3,
    coverage: float | None = None,
    false_alarms: float = 0.05,
    as_json: AsJson = False,
    as_csv: Annotated[bool, Parameter(name="--csv")] = False,
    to: str | None = None,
    out: Path | None = None,
    skip_bad: SkipBad = False,
    cycles: Cycles = None,
    backbone: str | None = None,
    device: Device = "auto",
) -> None:
    """Predict the classes of images: files, or folders of them.

    Examples:

        caprompt predict pets cat.jpg
        caprompt predict pets holiday/ --json --top 5
        caprompt predict pets holiday/ --csv > holiday.csv
        caprompt predict pets cat.jpg --cycles auto
        caprompt predict pets cat.jpg --coverage 0.9
        caprompt predict pets new/ --to label-studio --out tasks.json

    Parameters
    ----------
    model
        Folder of the model.
    images
        Image files, or folders of them at any depth.
    top
        Number of classes to print per image.
    coverage
        Print for each image a set of classes that holds the true one with this probability, such as 0.9.
    false_alarms
        Share of the images of learned classes that may be marked as "none of these".
    as_csv
        Print CSV: path,label,score, then label_2,score_2 and so on, and unknown (0 or 1). A name that a spreadsheet program would
        take for a formula is preceded by an apostrophe, a path by ./; control characters and bytes that are not UTF-8 appear
        as \\x1b.
    to
        Write the predictions for a labeling tool to import as pre-labels: label-studio or fiftyone.
    out
        File that --to writes: .json, for fiftyone also .csv.
    backbone
        Weights file of the backbone, if it was moved.
    """
    from caprompt.classifier import ContinualClassifier
    from caprompt.cli.tables import make_prediction_table
    from caprompt.data.annotations import PreLabel, check_tool, write_pre_labels
    from caprompt.data.image_folders import describe_ignored
    from caprompt.data.sources import collect_images

    if as_json and as_csv:
        raise OptionError("output is JSON or CSV, not both; leave out --json or --csv")
    if (to is None) != (out is None):
        raise OptionError("predictions for a labeling tool need its name and a file; give both --to and --out")
    if to is not None and out is not None:
        check_tool(to, out)
    classifier = ContinualClassifier.load(model, backbone=backbone, device=device)
    paths, ignored = collect_images(images)
    options = {**parse_cycles(cycles), "coverage": coverage, "false_alarms": false_alarms}
    predictions, skipped = predict_files(classifier, paths, top, skip_bad, options)
    print_skipped([*describe_ignored(ignored), *skipped])
    mark = print_protocol_warning(classifier)
    drift = classifier.calibration.describe_drift([each.score for _, each in predictions])
    print_warnings([drift] if drift else [])
    if to is not None and out is not None:
        write_pre_labels(out, to, [PreLabel(path, str(each.label), each.score) for path, each in predictions])
    if as_json:
        print(format_json([{"image": str(path), **prediction.as_dict(), **mark} for path, prediction in predictions]))
    elif as_csv:
        print_csv(list_rows(predictions, mark))
    else:
        print_table(make_prediction_table([str(path) for path, _ in predictions], [each for _, each in predictions], top))


def list_rows(predictions: Sequence[tuple[Path, Prediction]], mark: Mapping[str, str]) -> Iterator[list[object]]:
    """Yield the rows of a CSV file, the header first; `mark` are further columns that are the same in every row."""
    num_labels = len(predictions[0][1].top)
    ranks = ["", *(f"_{rank}" for rank in range(2, num_labels + 1))]
    yield ["path", *(f"{column}{rank}" for rank in ranks for column in ("label", "score")), "unknown", *mark]
    for path, prediction in predictions:
        name = str(path)
        ranked = [cell for each in prediction.top for cell in (each.label, round(each.score, 6))]
        yield [name if escape_formula(name) == name else f"./{name}", *ranked, int(prediction.unknown), *mark.values()]


def predict_files(
    model: ContinualClassifier, paths: Sequence[Path], top: int, skip_bad: bool, options: Mapping[str, Any]
) -> tuple[list[tuple[Path, Prediction]], list[str]]:
    """Return the predictions for readable images, and a message for each unreadable one; without `skip_bad`, raise on these."""
    predictions: list[tuple[Path, Prediction]] = []
    skipped: list[str] = []
    for readable, pixels in _decode_chunks(model, paths, skip_bad, skipped):
        predictions.extend(zip(readable, model.predict(pixels, top=top, **options), strict=True))
        pixels.clear()  # before the next chunk is decoded
    if not predictions:
        raise DataError("none of the images can be read")
    return predictions, skipped


def _decode_chunks(
    model: ContinualClassifier, paths: Sequence[Path], skip_bad: bool, skipped: list[str]
) -> Iterator[tuple[list[Path], list[Pixels]]]:
    """Yield readable images and their pixels, as many at a time as fit in memory."""
    from caprompt.data.images import decode
    from caprompt.engine.inputs import DECODE_FACTOR

    readable: list[Path] = []
    pixels: list[Pixels] = []
    for path in paths:
        try:
            pixels.append(decode(path, shrink_to=DECODE_FACTOR * model.backbone.config.image_size))
            readable.append(path)
        except DataError as error:
            if not skip_bad:
                raise
            skipped.append(str(error))
        if len(pixels) >= CHUNK_IMAGES or sum(each.nbytes for each in pixels) >= CHUNK_BYTES:
            yield readable, pixels
            readable, pixels = [], []
    if readable:
        yield readable, pixels
