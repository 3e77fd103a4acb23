"""The command `evaluate`: measure a model on labelled images."""

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
    """Measure a model on labelled images it has not learned from.

    Examples:

        caprompt evaluate pets photos/test
        caprompt evaluate pets photos/test --json --cycles 3

    Parameters
    ----------
    model
        The model's folder.
    source
        A folder with a sub-folder of images per class, or a CSV of path,label.
    give_task
        Tell the method each image's true task: what its prompts can do, not what a user would get.
    backbone
        Where the backbone's file is, if it has moved.
    """
    from caprompt.classifier import ContinualClassifier
    from caprompt.cli.tables import evaluation_table

    classifier = ContinualClassifier.load(model, backbone=backbone, device=device)
    found = classifier.evaluate(source, skip_bad=skip_bad, give_task=give_task, **parse_cycles(cycles))
    print_skipped(found.skipped)
    print_protocol_warning(classifier)
    if as_json:
        print(json.dumps(found.as_dict(), indent=2))
    else:
        out.print(evaluation_table(found))
        out.print(f"task identified in {found.task_identification:.1f} %, {found.mean_passes:.2f} passes per image")
        if found.protocol != HONEST:
            out.print(f"protocol {found.protocol}", soft_wrap=True)
