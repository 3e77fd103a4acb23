"""The command `push`: publish a model on the Hugging Face hub."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from caprompt.cli.arguments import Device
from caprompt.cli.console import err, out, print_warnings
from caprompt.errors import InputError

if TYPE_CHECKING:
    from caprompt.export.hub import Publication

__all__ = ["push"]


def push(
    model: Path,
    name: str,
    *,
    with_sums: bool = False,
    yes: bool = False,
    evaluate: Path | None = None,
    license_: Annotated[str, Parameter(name="--license")] = "unknown",
    private: bool = False,
    backbone: str | None = None,
    device: Device = "auto",
) -> None:
    """Publish a model on the Hugging Face hub, with a model card.

    The sums and class means that learning needs are left out, so that the model predicts but cannot learn on. A model that
    predicts with class means is refused without --with-sums.

    Examples:

        caprompt push pets me/pets
        caprompt push pets me/pets --evaluate photos/test --license apache-2.0
        caprompt push pets me/pets --with-sums --private

    Parameters
    ----------
    model
        Folder of the model.
    name
        Repository, as owner/name; it is created if it does not exist.
    with_sums
        Publish what learning needs as well; features of single images may be computed from it.
    yes
        With --with-sums: do not ask.
    evaluate
        Folder of labeled test images, or CSV file of path,label; the model card states the accuracy on them.
    license_
        License of the model, as the hub names it.
    private
        Create a private repository.
    backbone
        Weights file of the backbone, if it was moved.
    """
    from caprompt.export.hub import push_model

    if with_sums and not yes and not sys.stdin.isatty():
        raise InputError("--with-sums asks for a confirmation, which needs a terminal; confirm with --yes")
    pushed = push_model(
        model,
        name,
        with_sums=with_sums,
        evaluate=evaluate,
        license=license_,
        private=private,
        backbone=backbone,
        device=device,
        confirm=_announce if yes else _confirm,
    )
    out.print(f"published as {pushed.repository}, revision {pushed.revision}", soft_wrap=True)
    if not pushed.can_learn:
        out.print("It predicts the same but cannot learn on: sums and class means were left out.", soft_wrap=True)


def _announce(publication: Publication) -> None:
    """Print what the files reveal about the images."""
    print_warnings(f"this will be published: {sentence}" for sentence in publication.disclosure.describe())


def _confirm(publication: Publication) -> None:
    """Print what the files reveal about the images, if anything, and ask."""
    _announce(publication)
    if publication.disclosure.describe() and err.input("Publish that? [y/N] ", markup=False).strip().lower() not in ("y", "yes"):
        raise InputError("nothing was published")
