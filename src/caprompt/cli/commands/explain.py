"""The command `explain`: draw what in an image spoke for its predicted class."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from caprompt.cli.arguments import AsJson, Cycles, Device, parse_cycles
from caprompt.cli.console import format_json
from caprompt.cli.console import out as console

if TYPE_CHECKING:
    from caprompt.classifier.explanation import Explanation

__all__ = ["explain"]

FIGURE = Path("explanation.png")
LOW_FIT = 0.3  # a heat map below it says little about the prediction


def explain(
    model: Path,
    image: Path,
    *,
    out: Annotated[Path | None, Parameter(name=["--out", "-o"])] = None,
    against: str | None = None,
    copies: int = 256,
    as_json: AsJson = False,
    cycles: Cycles = None,
    backbone: str | None = None,
    device: Device = "auto",
) -> None:
    """Draw what in an image spoke for its predicted class, against the runner-up or another class.

    The figure has the image, a heat map of its patches, the scores, the nearest class means and the weights of the tasks.

    Examples:

        caprompt explain pets cat.jpg -o why.png
        caprompt explain pets cat.jpg -o why.svg --against lynx
        caprompt explain pets cat.jpg --json

    Parameters
    ----------
    model
        Folder of the model.
    image
        Image file.
    out
        Figure to write: .png, .svg or .pdf. By default explanation.png, and none with --json.
    against
        Class to compare the predicted one with. By default the runner-up.
    copies
        Copies of the image, each without some of its patches: more take longer and give a less noisy map.
    backbone
        Weights file of the backbone, if it was moved.
    """
    from caprompt.classifier import ContinualClassifier
    from caprompt.report.explanation_figure import check_figure_path, write_figure

    path = FIGURE if out is None and not as_json else out
    if path is not None:
        check_figure_path(path)
    options = parse_cycles(cycles)
    classifier = ContinualClassifier.load(model, backbone=backbone, device=device)
    explanation = classifier.explain(image, against=against, copies=copies, **options)
    if path is not None:
        write_figure(explanation, path)
    if as_json:
        print(format_json({"image": str(image), **explanation.as_dict()}))
    else:
        print_summary(explanation)
        console.print(f"written to {path}", soft_wrap=True)


def print_summary(explanation: Explanation) -> None:
    """Print the two classes, how far the heat map can be trusted, and the nearest class means."""
    first, second = explanation.predicted, explanation.against
    console.print(f"'{first.label}' with score {first.score:.2f}, against '{second.label}' with {second.score:.2f}", soft_wrap=True)
    caution = "; the patches do not act one by one, so read the map with caution" if explanation.fit < LOW_FIT else ""
    console.print(f"heat map: fit {explanation.fit:.2f} over {explanation.copies} copies{caution}", soft_wrap=True)
    means = ", ".join(f"'{each.label}' {each.cosine:.2f}" for each in explanation.nearest)
    console.print(f"nearest class means: {means or f'left out, {explanation.no_means}'}", soft_wrap=True)
