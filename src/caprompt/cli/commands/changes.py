"""The commands `undo`, `rename`, `join`, `forget` and `calibrate`: changes to a saved model."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from caprompt.cli.arguments import Device, SkipBad
from caprompt.cli.console import out

__all__ = ["calibrate", "forget", "join", "rename", "undo"]


def undo(model: Path) -> None:
    """Undo the last lesson or edit: every file of the model is then as it was before, byte for byte.

    If a call of learn was stopped, that call is discarded instead. The last few versions of a model are kept for this.

    Parameters
    ----------
    model
        Folder of the model.
    """
    from caprompt import checkpoint
    from caprompt.classifier import editing
    from caprompt.cli.commands.info import describe

    lesson = editing.undo(model)
    if lesson is editing.STOPPED:
        out.print(f"Discarded the call of learn that was stopped in '{model}'.", soft_wrap=True)
        return
    state = "is as it was before" if checkpoint.exists(model) else "has no lesson left and was removed"
    what = f" ({lesson['date'][:16].replace('T', ' ')}: {describe(lesson)})" if "date" in lesson else ""
    out.print(f"Undid the last change{what}; '{model}' {state}.", soft_wrap=True)


def rename(model: Path, old: str, new: str) -> None:
    """Give a class another name.

    Examples:

        caprompt rename pets kitty cat

    Parameters
    ----------
    model
        Folder of the model.
    old
        Name of the class.
    new
        Its new name.
    """
    from caprompt.classifier import editing

    editing.rename(model, old, new)
    out.print(f"Renamed '{old}' to '{new}' in '{model}'.", soft_wrap=True)


def join(model: Path, *names: str, into: Annotated[str, Parameter(name="--as")]) -> None:
    """Make one class of several: its score is the sum of theirs.

    Examples:

        caprompt join pets tabby siamese --as cat

    Parameters
    ----------
    model
        Folder of the model.
    names
        Classes to join, two at least.
    into
        Name of the joined class: a new one, or one of theirs.
    """
    from caprompt.classifier import editing

    classifier = editing.join(model, names, into)
    listed = ", ".join(f"'{name}'" for name in names)
    out.print(f"Joined {listed} as '{into}'; '{model}' now knows {len(classifier.classes)} classes.", soft_wrap=True)


def forget(
    model: Path,
    name: str,
    *,
    images: Path | None = None,
    approximate: bool = False,
    backbone: str | None = None,
    device: Device = "auto",
) -> None:
    """Remove a class from a model, and every trace of it from its folder; this cannot be undone.

    The result is the model that was never taught the class, where that can be computed: with a method that trains nothing, from
    features that the model keeps (--set keep_features=true when it was made), or from the images of the class. Otherwise
    the command is refused, unless an approximate result is allowed.

    Examples:

        caprompt forget pets cat
        caprompt forget pets cat --images photos/week1

    Parameters
    ----------
    model
        Folder of the model.
    name
        Name of the class.
    images
        Folder or CSV file with all the images of the class that were learned.
    approximate
        Remove its outputs, statistics and records only; what was trained on its images together with others stays.
    backbone
        Weights file of the backbone, if it was moved.
    """
    from caprompt.classifier import editing

    classifier = editing.forget(model, name, images=images, approximate=approximate, backbone=backbone, device=device)
    out.print(f"Forgot '{name}'; '{model}' now knows {len(classifier.classes)} classes.", soft_wrap=True)


def calibrate(
    model: Path, source: Path, *, skip_bad: SkipBad = False, backbone: str | None = None, device: Device = "auto"
) -> None:
    """Fit the scores of a model to labeled images that it has not learned.

    The default method calibrates itself with every lesson, without such images; with them, any method can be calibrated, and
    the share of false alarms is that of these images.

    Examples:

        caprompt calibrate pets photos/held-out

    Parameters
    ----------
    model
        Folder of the model.
    source
        Folder with a sub-folder of images per class, or CSV file of path,label.
    backbone
        Weights file of the backbone, if it was moved.
    """
    from caprompt.classifier import editing

    fitted = editing.calibrate(model, source, skip_bad=skip_bad, backbone=backbone, device=device).calibration
    out.print(
        f"Calibrated '{model}' on {fitted.images} images: temperature {1 / fitted.factor:.2f}, curvature {fitted.curvature:g}, "
        f"background {fitted.background:.2f}.",
        soft_wrap=True,
    )
