"""The command `merge`: one model of several that were taught apart."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from caprompt.cli.arguments import Device
from caprompt.cli.console import out

__all__ = ["merge"]


def merge(
    *models: Path,
    into: Path,
    base: Path | None = None,
    backbone: Annotated[str | None, Parameter(help="Weights file of the backbone, if it was moved.")] = None,
    device: Device = "auto",
) -> None:
    """Merge models into a new one, which predicts as if it had been taught everything that they were taught.

    That is possible for the methods ridge, ncm and ranpac, and for caprompt with a single task, where the models share the
    backbone, the seed, and what was trained in a first task; others are refused with the reason. The models stay as they are.

    Examples:

        caprompt merge north south --into both
        caprompt merge north south east --into all --base first-task

    Parameters
    ----------
    models
        Folders of the models, two at least.
    into
        Folder of the merged model, which must not exist yet.
    base
        Folder of the model that all of them were copied from before they were taught more; its images count once.
    """
    from caprompt.classifier import merged_models

    merged = merged_models.merge(models, into, base=base, backbone=backbone, device=device)
    images = sum(merged.images_seen.values())
    out.print(
        f"Merged {len(models)} models: '{into}' now knows {len(merged.classes)} classes from {images} images.", soft_wrap=True
    )
