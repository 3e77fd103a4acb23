"""The command `card`: write the model card of a model."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from caprompt.cli.arguments import Device
from caprompt.cli.console import out

__all__ = ["card"]


def card(
    model: Path,
    *,
    evaluate: Path | None = None,
    license_: Annotated[str, Parameter(name="--license")] = "unknown",
    out_file: Annotated[Path | None, Parameter(name="--out")] = None,
    backbone: str | None = None,
    device: Device = "auto",
) -> None:
    """Write the model card of a model: what it is, how to use it, what its files reveal, and how accurate it is.

    Examples:

        caprompt card pets
        caprompt card pets --evaluate photos/test --out pets.md

    Parameters
    ----------
    model
        Folder of the model.
    evaluate
        Folder of labeled test images, or CSV file of path,label; the card states the accuracy on them.
    license_
        License of the model, as the hub names it.
    out_file
        File to write; by default README.md in the folder of the model.
    backbone
        Weights file of the backbone, if it was moved.
    """
    from caprompt.export.card import write_model_card

    path = write_model_card(model, out_file, evaluate=evaluate, license=license_, backbone=backbone, device=device)
    out.print(f"written to {path}", soft_wrap=True)
