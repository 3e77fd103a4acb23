"""The command `evaluate`: compute the accuracy of a model on labeled images, and show its mistakes."""

from __future__ import annotations

from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Parameter

from caprompt.cli.arguments import AsJson, Cycles, Device, SkipBad, parse_cycles
from caprompt.cli.console import format_json, out, print_protocol_warning, print_skipped
from caprompt.protocols import HONEST
from caprompt.utils.text import escape_controls, join_names

if TYPE_CHECKING:
    from caprompt.outputs import Evaluation

__all__ = ["evaluate"]

NUM_CLASSES, NUM_CONFUSIONS, NUM_WRONG = 15, 10, 5  # shown without --all: together they fill a screen


def evaluate(
    model: Path,
    source: Path,
    *,
    as_json: AsJson = False,
    show_all: Annotated[bool, Parameter(name="--all")] = False,
    wrong: Path | None = None,
    confusion: Path | None = None,
    unknown: Literal["skip", "refuse", "count"] = "skip",
    skip_bad: SkipBad = False,
    cycles: Cycles = None,
    give_task: bool = False,
    backbone: str | None = None,
    device: Device = "auto",
) -> None:
    """Compute the accuracy of a model on labeled images that it was not trained on, and show its mistakes.

    Examples:

        caprompt evaluate pets photos/test
        caprompt evaluate pets photos/test --wrong wrong.csv --confusion confusion.png
        caprompt evaluate pets photos/test --unknown count
        caprompt evaluate pets photos/test --json --cycles 3

    Parameters
    ----------
    model
        Folder of the model.
    source
        Folder with a sub-folder of images per class, CSV file of path,label, or export of FiftyOne or Label Studio (JSON or CSV).
    show_all
        Print every class, confusion and wrong image, not only the worst.
    wrong
        CSV file to write: path,label,predicted,score of every wrong image.
    confusion
        File to write the confusion matrix to, .csv or .png.
    unknown
        Images of classes that have not been learned: leave them out, refuse them, or count how well they are told from the others.
    give_task
        Give the method the true task of each image: an upper bound, not the accuracy that a user would get.
    backbone
        Weights file of the backbone, if it was moved.
    """
    from caprompt.checkpoint.hub import is_reference
    from caprompt.checkpoint.model import record_evaluation
    from caprompt.classifier import ContinualClassifier
    from caprompt.report import evaluation_files

    if wrong is not None:
        evaluation_files.check_export(wrong, [".csv"], "--wrong")
    if confusion is not None:
        evaluation_files.check_export(confusion, [".csv", ".png"], "--confusion")
    classifier = ContinualClassifier.load(model, backbone=backbone, device=device)
    if confusion is not None:
        evaluation_files.check_matrix_size(confusion, len(classifier.classes))
    evaluation = classifier.evaluate(source, skip_bad=skip_bad, give_task=give_task, unknown=unknown, **parse_cycles(cycles))
    print_skipped(evaluation.skipped)
    print_protocol_warning(classifier)
    if not give_task and not is_reference(model):
        record_evaluation(model, classifier.identity, summarize_evaluation(evaluation, source))
    if wrong is not None:
        evaluation_files.write_wrong(evaluation, wrong)
    if confusion is not None:
        evaluation_files.write_confusion(evaluation, confusion)
    if as_json:
        print(format_json(evaluation.as_dict()))
    else:
        _print_summary(evaluation)
        _print_classes(evaluation, show_all)
        _print_mistakes(evaluation, show_all)
        for path in (wrong, confusion):
            if path is not None:
                _print(f"written to {path}")


def summarize_evaluation(evaluation: Evaluation, source: Path) -> dict[str, object]:
    """Return what is kept of an evaluation beside the model, and `caprompt info` shows."""
    return {
        "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "source": source.name,
        "images": evaluation.images,
        "accuracy": evaluation.accuracy,
        "interval": list(evaluation.interval),
        "average_accuracy": evaluation.average_accuracy,
        "calibration_error": evaluation.calibration_error,
        "protocol": evaluation.protocol,
    }


def _print_summary(evaluation: Evaluation) -> None:
    from caprompt.cli.tables import make_evaluation_table

    out.print(make_evaluation_table(evaluation))
    _print(f"task identified in {evaluation.task_identification:.1f} %, {evaluation.mean_passes:.2f} passes per image")
    _print(f"scores and accuracy are {evaluation.calibration_error:.1f} points apart (expected calibration error)")
    if evaluation.unknown is not None:
        score = evaluation.unknown
        images = _count(score.images, "image", "images")
        _print(f"{images} of classes that have not been learned: AUROC {score.auroc:.1f} % against the others")
        if score.flagged is not None:
            _print(f"flagged as unknown: {score.flagged:.1f} % of these, and {score.falsely_flagged:.1f} % of the others")
    if evaluation.protocol != HONEST:
        _print(f"protocol {evaluation.protocol}")


def _print_classes(evaluation: Evaluation, show_all: bool) -> None:
    """Print the accuracy by class, the worst first, and the number of classes that were not tested."""
    from caprompt.cli.tables import make_class_table

    classes = evaluation.list_classes()
    shown = classes if show_all else classes[:NUM_CLASSES]
    out.print()
    out.print(make_class_table(evaluation, shown))
    _print_rest(len(shown), len(classes), "classes", "--all shows all")
    untested = [name for name, count in evaluation.images_per_class.items() if not count]
    if untested:
        _print(f"{_count(len(untested), 'learned class', 'learned classes')} had no image: {join_names(untested)}")


def _print_mistakes(evaluation: Evaluation, show_all: bool) -> None:
    """Print the most frequent confusions and a few of the wrong images."""
    out.print()
    if not evaluation.mistakes:
        _print("no image was taken for another class")
        return
    confusions = evaluation.list_confusions()
    frequent = confusions if show_all else confusions[:NUM_CONFUSIONS]
    out.print("most frequent confusions", style="bold")
    for each in frequent:
        _print(f"  {each.describe()}")
    _print_rest(len(frequent), len(confusions), "confusions", "--all shows all")
    worst = evaluation.mistakes if show_all else evaluation.mistakes[:NUM_WRONG]
    out.print()
    out.print("wrong images, the highest scores first", style="bold")
    for mistake in worst:
        where = mistake.path or f"image {mistake.image}"
        _print(f"  {where}: '{mistake.label}' taken for '{mistake.predicted}', score {mistake.score:.2f}")
    _print_rest(len(worst), len(evaluation.mistakes), "wrong images", "--wrong FILE.csv writes all to a file")


def _print_rest(shown: int, total: int, noun: str, remedy: str) -> None:
    """Print how many entries of a list are not shown, and how to get them."""
    if shown < total:
        _print(f"{shown:,} of {total:,} {noun} are shown; {remedy}")


def _print(line: str) -> None:
    """Print a line as it is; a long one is not wrapped, so that paths in it can be copied."""
    out.print(escape_controls(line), soft_wrap=True)


def _count(number: int, noun: str, plural: str) -> str:
    return f"1 {noun}" if number == 1 else f"{number:,} {plural}"
