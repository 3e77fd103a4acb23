"""The command `predict`: classify image files and print their classes, or write them to a file."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from caprompt.cli.arguments import AsJson, Cluster, Cpus, Cycles, Device, Gpus, SkipBad, parse_cycles
from caprompt.cli.bulk_prediction import make_runner, predict_in_bulk
from caprompt.cli.console import format_json, print_csv, print_protocol_warning, print_skipped, print_table, print_warnings
from caprompt.errors import OptionError
from caprompt.utils.memory import pause_collection
from caprompt.utils.spreadsheets import escape_formula

if TYPE_CHECKING:
    from caprompt.outputs import Prediction

__all__ = ["predict"]

BULK_SUFFIXES = (".parquet", ".jsonl")  # of files with a row for each image


def predict(
    model: Path,
    *images: str,
    top: int = 3,
    coverage: float | None = None,
    false_alarms: float = 0.05,
    as_json: AsJson = False,
    as_csv: Annotated[bool, Parameter(name="--csv")] = False,
    to: str | None = None,
    out: Path | None = None,
    cluster: Cluster = None,
    cpus: Cpus = 1,
    gpus: Gpus = None,
    jobs: int | None = None,
    skip_bad: SkipBad = False,
    cycles: Cycles = None,
    backbone: str | None = None,
    device: Device = "auto",
) -> None:
    """Predict the classes of images: files, folders of them, or addresses such as s3://bucket/photos.

    Examples:

        caprompt predict pets cat.jpg
        caprompt predict pets holiday/ --json --top 5
        caprompt predict pets holiday/ --csv > holiday.csv
        caprompt predict pets cat.jpg --cycles auto
        caprompt predict pets cat.jpg --coverage 0.9
        caprompt predict pets new/ --to label-studio --out tasks.json
        caprompt predict pets archive/ --out predictions.parquet
        caprompt predict pets s3://bucket/photos --out predictions.parquet --cluster ray://head:10001

    Parameters
    ----------
    model
        Folder of the model.
    images
        Image files, or folders of them at any depth, also at an address.
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
        File to write instead of printing: .parquet or .jsonl, with a row for each image, also for unreadable ones; a stopped
        call goes on where it stopped. With --to, the file that it writes: .json, for fiftyone also .csv.
    jobs
        Number of workers of a cluster; by default as many as it has room for.
    backbone
        Weights file of the backbone, if it was moved.
    """
    with pause_collection():
        from caprompt.classifier import ContinualClassifier
        from caprompt.classifier.file_prediction import predict_files
        from caprompt.cli.tables import make_prediction_table
        from caprompt.data.annotations import PreLabel, check_tool, write_pre_labels
        from caprompt.data.image_folders import describe_ignored
        from caprompt.data.remote_images import is_address

    if as_json and as_csv:
        raise OptionError("output is JSON or CSV, not both; leave out --json or --csv")
    options = {**parse_cycles(cycles), "coverage": coverage, "false_alarms": false_alarms}
    if to is None and out is not None and out.suffix.lower() in BULK_SUFFIXES:
        from caprompt.distributed.bulk_prediction import ModelSpec

        if as_json or as_csv:
            raise OptionError(f"output goes to '{out}'; leave out --json and --csv")
        runner = make_runner(cluster, cpus, gpus, jobs, device)
        paths, ignored = _collect(images)
        print_skipped(describe_ignored(ignored))
        predict_in_bulk(ModelSpec(model.absolute(), backbone, device, top, options), paths, out, runner)
        return
    if cluster is not None:
        raise OptionError("a cluster writes its predictions to a file; name one that ends with .parquet or .jsonl with --out")
    if (to is None) != (out is None):
        raise OptionError(
            "predictions for a labeling tool need its name and a file; give both --to and --out, "
            "or without --to a file that ends with .parquet or .jsonl"
        )
    if to is not None and out is not None:
        check_tool(to, out)
        if any(map(is_address, images)):
            raise OptionError("labeling tools take the paths of files; leave out --to, or name files and folders")
    classifier = ContinualClassifier.load(model, backbone=backbone, device=device)
    paths, ignored = _collect(images)
    predictions, skipped = predict_files(classifier, paths, top, skip_bad, options)
    print_skipped([*describe_ignored(ignored), *skipped])
    mark = print_protocol_warning(classifier)
    drift = classifier.calibration.describe_drift([each.score for _, each in predictions])
    print_warnings([drift] if drift else [])
    if to is not None and out is not None:
        write_pre_labels(out, to, [PreLabel(Path(path), str(each.label), each.score) for path, each in predictions])
    if as_json:
        print(format_json([{"image": str(path), **prediction.as_dict(), **mark} for path, prediction in predictions]))
    elif as_csv:
        print_csv(list_rows(predictions, mark))
    else:
        print_table(make_prediction_table([str(path) for path, _ in predictions], [each for _, each in predictions], top))


def _collect(images: Sequence[str]) -> tuple[list[Path | str], list[Path]]:
    """Return images, of folders and addresses all that are in them, and the files there that are not images."""
    from caprompt.data.remote_images import is_address, list_remote_images
    from caprompt.data.sources import collect_images

    found: list[Path | str] = []
    ignored: list[Path] = []
    for image in images or [""]:
        if is_address(image):
            found += list_remote_images(image)
        else:
            paths, others = collect_images([Path(image)] if images else [])
            found += paths
            ignored += others
    return found, ignored


def list_rows(predictions: Sequence[tuple[Path | str, Prediction]], mark: Mapping[str, str]) -> Iterator[list[object]]:
    """Yield the rows of a CSV file, the header first; `mark` are further columns that are the same in every row."""
    num_labels = len(predictions[0][1].top)
    ranks = ["", *(f"_{rank}" for rank in range(2, num_labels + 1))]
    yield ["path", *(f"{column}{rank}" for rank in ranks for column in ("label", "score")), "unknown", *mark]
    for path, prediction in predictions:
        name = str(path)
        ranked = [cell for each in prediction.top for cell in (each.label, round(each.score, 6))]
        yield [name if escape_formula(name) == name else f"./{name}", *ranked, int(prediction.unknown), *mark.values()]
