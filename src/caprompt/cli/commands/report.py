"""The command `report`: write an HTML page about finished runs, or about a model and its mistakes."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from caprompt.cli.arguments import Device, SkipBad
from caprompt.cli.console import out, print_protocol_warning, print_skipped
from caprompt.errors import InputError

__all__ = ["report"]


def report(
    *paths: Path,
    out_file: Annotated[Path, Parameter(name="--out")] = Path("report.html"),
    no_pictures: bool = False,
    skip_bad: SkipBad = False,
    backbone: str | None = None,
    device: Device = "auto",
) -> None:
    """Write one self-contained HTML page about a model and its mistakes, or about one or several runs.

    Examples:

        caprompt report pets photos/test --out pets.html
        caprompt report runs/beetles-caprompt-vit_mini_patch8_64.tin200_distilled-seed0
        caprompt report runs/beetles-* --out compared.html
        caprompt report runs/pets --no-pictures

    Parameters
    ----------
    paths
        Folder of a model, and a folder of test images (a sub-folder per class) or CSV file of path,label. Or folders of finished
        runs of one protocol; a folder of such folders (several seeds) counts as all of them.
    out_file
        HTML file to write; an existing file is overwritten.
    no_pictures
        Leave out the images of mistakes, for private data.
    backbone
        Weights file of the backbone of the model, if it was moved.
    """
    from caprompt import checkpoint
    from caprompt.checkpoint import hub
    from caprompt.report import write_report

    if paths and (checkpoint.exists(paths[0]) or hub.is_reference(paths[0])):
        if len(paths) != 2:
            raise InputError(f"'{paths[0]}' is a model; give it and the folder of its test images, such as photos/test")
        _report_model(*paths, out_file, not no_pictures, skip_bad, backbone, device)
    else:
        write_report(paths, out_file, images=not no_pictures)
    out.print(f"written to {out_file}", soft_wrap=True)


def _report_model(
    model: Path, source: Path, out_file: Path, images: bool, skip_bad: bool, backbone: str | None, device: str
) -> None:
    from caprompt.classifier import ContinualClassifier
    from caprompt.report import evaluate_model, write_model_report
    from caprompt.report.page import check_path

    check_path(out_file)
    classifier = ContinualClassifier.load(model, backbone=backbone, device=device)
    record = evaluate_model(classifier, source, model.resolve().name, skip_bad=skip_bad)
    print_skipped(record.evaluation.skipped)
    print_protocol_warning(classifier)
    write_model_report(record, out_file, images=images)
