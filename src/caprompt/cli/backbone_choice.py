"""The choice of a backbone for a new model whose user has named none, and its download.

Nothing is downloaded without consent: an answer on the terminal, or `--yes`. Where nobody can be asked, the best backbone on this
machine is used, and a line on stderr says which one would be better.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from caprompt.cli.console import err
from caprompt.errors import InputError, OptionError, UnknownNameError

if TYPE_CHECKING:
    from pathlib import Path

    from caprompt.backbones.recommendation import Recommendation

__all__ = ["choose_backbone", "describe_recommendation", "download_backbone", "require_local_backbone"]


def choose_backbone(device: str, *, yes: bool, offline: bool) -> str:
    """Return the name of the backbone for a new model; ask on a terminal whether to download a better one.

    With `yes` it is downloaded without being asked for, with `offline` the network is not used.
    """
    from caprompt.backbones.recommendation import compare, describe_download, find_present, recommend
    from caprompt.utils.devices import resolve_device

    if yes and offline:
        raise OptionError("--yes downloads a better backbone and --offline forbids it; give one of them")
    gpu = resolve_device(device).type != "cpu"
    choice = recommend(find_present(), gpu=gpu)
    if choice.better is None:
        _print_line(f"Backbone: {choice.name}, the best one for this machine")
        return choice.name
    if offline or not (yes or _is_interactive()):
        _print_line(f"Backbone: {describe_recommendation(choice, gpu=gpu)}; {_explain_consent(choice, offline)}")
        return choice.name
    if not _is_hub_reachable():
        _print_line(f"Backbone: {describe_recommendation(choice, gpu=gpu)}; the hub cannot be reached now")
        return choice.name
    if not yes:
        gain = compare(choice.better.name, choice.name, gpu=gpu)
        instead = "the embedded one, which is for demos" if choice.is_embedded else choice.name
        _print_line(f"Backbone: {describe_download(choice.better)} is better than {instead}: {gain}")
        if not _confirm(f"Download {choice.better.megabytes} MB? [Y/n] "):
            _print_line(f"Backbone: {choice.name}")
            return choice.name
    download_backbone(choice.better.name)
    _print_line(f"Backbone: {describe_download(choice.better)}")
    return choice.better.name


def describe_recommendation(choice: Recommendation, *, gpu: bool) -> str:
    """Return what would be used, and what a better backbone would bring."""
    from caprompt.backbones.recommendation import compare, describe_download

    text = f"{choice.name}{', which is for demos' if choice.is_embedded else ''}"
    if choice.better is None:
        return text
    return f"{text}; better: {describe_download(choice.better)}, {compare(choice.better.name, choice.name, gpu=gpu)}"


def download_backbone(name: str) -> Path:
    """Return the weights file of a backbone, downloaded if it is not on this machine."""
    from caprompt.backbones.registry import MODELS, find_file
    from caprompt.backbones.weights import list_packaged

    if name in (packaged := list_packaged()):
        return packaged[name]
    if name not in MODELS:
        raise UnknownNameError("backbone", name, [*packaged, *MODELS])
    return find_file(MODELS[name])


def require_local_backbone(name: str) -> None:
    """Raise `InputError` for a backbone that would have to be downloaded; a path is left to the reader of weights files."""
    from caprompt.backbones.registry import MODELS, find_local_file

    if name in MODELS and find_local_file(MODELS[name]) is None:
        raise InputError(
            f"the weights of '{name}' are not on this machine, and --offline forbids their download; "
            f"get them with 'caprompt backbones --download {name}', or choose another backbone"
        )


def _is_interactive() -> bool:
    """Return whether somebody can be asked."""
    return sys.stdin.isatty() and sys.stderr.isatty()


def _is_hub_reachable() -> bool:
    from caprompt.backbones.registry import is_hub_reachable

    return is_hub_reachable()


def _explain_consent(choice: Recommendation, offline: bool) -> str:
    """Say how to get the better backbone."""
    name = choice.better.name if choice.better else ""
    remedy = f"get it with 'caprompt backbones --download {name}'"
    return remedy if offline else f"{remedy}, or with --yes"


def _confirm(question: str) -> bool:
    """Ask; an empty answer is yes, and a closed terminal is no."""
    try:
        return err.input(question, markup=False).strip().lower() in ("", "y", "yes")
    except EOFError:
        return False


def _print_line(message: str) -> None:
    err.print(message, soft_wrap=True)
