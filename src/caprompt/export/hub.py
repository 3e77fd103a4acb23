"""Publishing of models on the Hugging Face hub (`push_model`), and copies of published ones (`pull_model`).

By default nothing is published from which features of training images could be computed: no sums, Gram matrices, class means or
covariances, as the method declares them (`Method.learning_state`). The model then predicts the same but cannot learn on.
Neither are paths of this machine: the backbone is named by its name and hash.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Any

import torch

from caprompt import checkpoint
from caprompt.checkpoint import hub
from caprompt.checkpoint.hub import CARD, FILES
from caprompt.classifier import ContinualClassifier
from caprompt.data.sources import Source
from caprompt.errors import CapromptError, InputError, ModelFolderError
from caprompt.export.card import DEFAULT_LICENSE, CardOptions, Disclosure, make_card, measure, read_recorded_evaluation
from caprompt.utils import files
from caprompt.utils.paths import expand_user

__all__ = ["ORIGIN", "Publication", "Pushed", "prepare_publication", "pull_model", "push_model"]

ORIGIN = "hub.json"  # beside a pulled model: repository and commit that it is a copy of
OTHERS = {CARD, ".gitattributes", "LICENSE", "LICENSE.md", "LICENSE.txt"}  # files that a repository may hold besides a model's
CONFIGURATION = {"method", "options", "backbone", "seed", "task_sizes", "calls", "calibration", "progress"}  # published
LESSONS = "lessons"  # in config.json: when images were learned, and hashes of them
TOLERANCE = 1e-4  # between logits before and after publication; on a CPU they are equal


@dataclass(frozen=True)
class Publication:
    """What is published of a model."""

    saved: checkpoint.Saved
    disclosure: Disclosure


@dataclass(frozen=True)
class Pushed:
    """A published model."""

    repository: str
    revision: str  # the commit
    url: str
    can_learn: bool


def push_model(
    folder: str | Path,
    repository: str,
    *,
    with_sums: bool = False,
    evaluate: Source | None = None,
    license: str = DEFAULT_LICENSE,
    private: bool = False,
    backbone: str | Path | None = None,
    device: str = "auto",
    confirm: Callable[[Publication], None] | None = None,
) -> Pushed:
    """Publish the model in a folder as `owner/name`, with a model card, in one commit; the repository is created if need be.

    `with_sums` keeps what learning needs, from which features of training images may be computed. `evaluate` are labeled images
    that the accuracy in the card is measured on. `confirm` is called before anything is sent, and raises to stop.
    """
    hub.check_repository_name(repository)
    folder = expand_user(folder)
    saved = checkpoint.read(folder)
    present = _list_target(repository)
    model = ContinualClassifier.load(folder, backbone=backbone, device=device)
    publication = prepare_publication(model, saved, with_sums)
    if confirm is not None:
        confirm(publication)
    evaluation = measure(model, evaluate) if evaluate is not None else read_recorded_evaluation(folder, model)
    card = make_card(model, CardOptions(repository, license, publication.disclosure), evaluation)
    with tempfile.TemporaryDirectory() as draft:
        checkpoint.write(Path(draft), publication.saved)
        _check_predictions(model, Path(draft), device)
        contents = _read_files(Path(draft))
    commit = _upload(repository, {**contents, CARD: card.encode()}, sorted((FILES & present) - contents.keys()), private)
    return Pushed(repository, commit.oid, str(commit.commit_url), can_learn=publication.disclosure.can_learn)


def prepare_publication(model: ContinualClassifier, saved: checkpoint.Saved, with_sums: bool = False) -> Publication:
    """Return what is published of a model and its saved files; refuse what cannot be published without statistics."""
    method = model.method
    statistics = method.list_feature_statistics()
    removed = [] if with_sums else method.list_learning_state()
    kept = [name for name in statistics if name not in removed]
    if kept and not with_sums:
        raise InputError(
            f"a model of '{method.name}' predicts with statistics of the features of its images ({kept[0]}), which can therefore "
            "not be left out; publish them with with_sums=True, or train another method"
        )
    left_out = {f"method.{name}" for name in removed}
    tensors = {name: tensor for name, tensor in saved.tensors.items() if name not in left_out}
    # A model that was itself published without its statistics still goes without them.
    removed = sorted({*method.removed_state, *removed})
    config = {name: value for name, value in saved.config.items() if name in CONFIGURATION or (with_sums and name == LESSONS)}
    config |= {"backbone": {**config["backbone"], "path": ""}, **({"removed": removed} if removed else {})}
    public = checkpoint.Saved(
        _hide_paths(config), saved.classes, tensors, _hide_paths(list(saved.metrics)), saved.records if with_sums else {}
    )
    return Publication(public, Disclosure(tuple(kept), bool(public.records), can_learn=not removed))


def pull_model(repository: str, folder: str | Path, revision: str | None = None) -> hub.Download:
    """Copy a published model into a folder, which must be new or empty; `hub.json` there names the commit.

    Everything is downloaded and verified before anything is written.
    """
    folder = expand_user(folder)
    hub.check_local(folder)
    if folder.is_file() or (folder.is_dir() and any(folder.iterdir())):
        raise InputError(f"'{folder}' exists and is not empty; choose another folder")
    download = hub.download_model(repository, revision)
    try:
        checkpoint.read(download.folder)
    except ModelFolderError as error:
        message = str(error).replace(str(download.folder), repository)
        raise InputError(f"'{repository}' cannot be used: {message}") from error
    contents = _read_files(download.folder)
    contents[ORIGIN] = files.encode_json({"repository": repository, "revision": download.revision})
    with checkpoint.lock_folder(folder):
        files.commit(folder, contents)
    return replace(download, folder=folder)


def _read_files(folder: Path) -> dict[str, bytes]:
    """Return the files of a model and of its card, by name."""
    return {name: (folder / name).read_bytes() for name in sorted({*FILES, CARD}) if (folder / name).is_file()}


def _hide_paths(value: Any) -> Any:
    r"""Return a JSON value in which only the last part of every absolute path is left.

    >>> _hide_paths({"descriptions": "/home/me/birds.txt", "layers": "first-5", "sizes": [2, r"C:\data\x.csv"]})
    {'descriptions': 'birds.txt', 'layers': 'first-5', 'sizes': [2, 'x.csv']}
    """
    if isinstance(value, dict):
        return {key: _hide_paths(each) for key, each in value.items()}
    if isinstance(value, list):
        return [_hide_paths(each) for each in value]
    if isinstance(value, str) and (PurePosixPath(value).is_absolute() or PureWindowsPath(value).is_absolute()):
        return PureWindowsPath(value).name
    return value


@torch.no_grad()
def _check_predictions(model: ContinualClassifier, draft: Path, device: str) -> None:
    """Raise if the model that would be published predicts differently: its method declares too much as needed by learning only."""
    published = ContinualClassifier.load(draft, backbone=model.backbone.path, device=device)
    side = model.backbone.config.image_size
    images = torch.randn(4, 3, side, side, generator=torch.Generator().manual_seed(0)).to(model.device)
    logits, others = (each.method.predict(images).logits for each in (model, published))
    if not torch.allclose(logits, others, rtol=TOLERANCE, atol=TOLERANCE):
        raise CapromptError(
            f"without its statistics this model would predict differently: `learning_state` of the method '{model.method.name}' "
            "names state that predictions need"
        )


def _list_target(repository: str) -> set[str]:
    """Return the files of a repository, none if it does not exist; refuse one that holds anything but a model of caprompt."""
    hub.require_hub(repository)
    from huggingface_hub import HfApi, constants
    from huggingface_hub.errors import RepositoryNotFoundError

    with hub.explain_hub_errors(repository):
        try:
            names = set(HfApi(endpoint=constants.ENDPOINT).list_repo_files(repository))
        except RepositoryNotFoundError:
            return set()
        hub.check_no_pickle(repository, names)
        if foreign := sorted(names - OTHERS - FILES):
            raise InputError(f"'{repository}' exists and holds other files ('{foreign[0]}'); choose another name")
    return names


def _upload(repository: str, contents: dict[str, bytes], surplus: Sequence[str], private: bool) -> Any:
    """Create the repository if need be; add the files and delete the surplus ones in one commit."""
    from huggingface_hub import CommitOperationAdd, CommitOperationDelete, HfApi, constants

    api = HfApi(endpoint=constants.ENDPOINT, library_name="caprompt")
    with hub.explain_hub_errors(repository):
        api.create_repo(repository, private=private or None, exist_ok=True)
        added = [CommitOperationAdd(name, content) for name, content in contents.items()]
        deleted = [CommitOperationDelete(name) for name in surplus]
        return api.create_commit(repository, [*added, *deleted], commit_message="Upload a model of caprompt")
