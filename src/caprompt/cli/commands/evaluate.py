"""The command `evaluate`: compute the accuracy of a model on labeled images."""

from __future__ import annotations

import json
from pathlib import Path

from caprompt.cli.arguments import AsJson, Cycles, Device, SkipBad, parse_cycles
from caprompt.cli.console import out, print_protocol_warning, print_skipped
from caprompt.protocols import HONEST

__all__ = ["evaluate"]


def evaluate(
    model: Path,
    source: Path,
    *,
    as_json: AsJson = False,
    skip_bad: SkipBad = False,
    cycles: Cycles = None,
    give_task: bool = False,
    backbone: str | None = None,
    device: Device = "auto",
) -> None:
    """Compute the accuracy of a model on labeled images that it was not trained on.

    Examples:

        caprompt evaluate pets photos/test
        caprompt evaluate pets photos/test --json --cycles 3

    Parameters
    ----------
    model
        Folder of the model.
    source
        Folder with a sub-folder of images per class, or CSV file of path,label.
    give_task
        Give the method the true task of each image: an upper bound, not the accuracy that a user would get.
    backbone
        Weights file of the backbone, if it was moved.
    """
    from caprompt.classifier import ContinualClassifier
    from caprompt.cli.tables import make_evaluation_table

    classifier = ContinualClassifier.load(model, backbone=backbone, device=device)
    evaluation = classifier.evaluate(source, skip_bad=skip_bad, give_task=give_task, **parse_cycles(cycles))
    print_skipped(evaluation.skipped)
    print_protocol_warning(classifier)
    if as_json:
        print(json.dumps(evaluation.as_dict(), indent=2))
    else:
        out.print(make_evaluation_table(evaluation))
        out.print(f"task identified in {evaluation.task_identification:.1f} %, {evaluation.mean_passes:.2f} passes per image")
        if evaluation.protocol != HONEST:
            out.print(f"protocol {evaluation.protocol}", soft_wrap=True)
