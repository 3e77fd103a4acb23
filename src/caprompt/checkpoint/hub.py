"""Models on the Hugging Face hub: references such as `hf:owner/name@revision`, and their download.

Only the files of a model folder are downloaded, which are safetensors and JSON; a repository that holds a pickle is refused as a
whole. A branch is resolved to its commit first, so that all files are of one version. A revision given by its commit hash that has
been downloaded before is read from the hub's cache, without a network.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from caprompt.backbones.registry import is_hub_reachable
from caprompt.checkpoint.folder import CLASSES, CONFIG, METRICS, RECORDS, STATE, read_config
from caprompt.errors import CapromptError, InputError, ModelFolderError, first_line

__all__ = [
    "CARD",
    "FILES",
    "PREFIX",
    "Download",
    "check_local",
    "check_no_pickle",
    "check_repository_name",
    "download_model",
    "download_reference",
    "explain_hub_errors",
    "is_reference",
    "parse_reference",
    "require_hub",
]

PREFIX = "hf:"
REQUIRED = {CONFIG, CLASSES, METRICS, STATE}  # files of every model
FILES = REQUIRED | {RECORDS}  # files that a model may have
CARD = "README.md"  # of a repository
PICKLES = {".bin", ".ckpt", ".dill", ".joblib", ".npy", ".npz", ".pickle", ".pkl", ".pt", ".pth"}  # may hold code


@dataclass(frozen=True)
class Download:
    """A downloaded model: its folder in the hub's cache, and the commit that it is of."""

    folder: Path
    revision: str


def is_reference(path: str | Path) -> bool:
    """Return whether this names a model on the hub and not a folder.

    >>> is_reference("hf:owner/name"), is_reference("models/hf")
    (True, False)
    """
    return str(path).startswith(PREFIX)


def parse_reference(reference: str) -> tuple[str, str | None]:
    """Return the repository and the revision of a reference.

    >>> parse_reference("hf:owner/name"), parse_reference("hf:owner/name@0a1b2c")
    (('owner/name', None), ('owner/name', '0a1b2c'))
    """
    repository, at, revision = reference.removeprefix(PREFIX).partition("@")
    check_repository_name(repository)
    if at and not revision:
        raise InputError(f"'{reference}' has no revision after '@'; write {PREFIX}owner/name@HASH, or leave out '@'")
    return repository, revision or None


def check_repository_name(name: str) -> None:
    """Raise `InputError` for what cannot be the name of a repository.

    >>> check_repository_name("owner/name")
    >>> check_repository_name("name")
    Traceback (most recent call last):
    caprompt.errors.InputError: 'name' is not the name of a repository on the hub; write owner/name, ...
    """
    part = r"\w([\w.-]*\w)?"
    if not re.fullmatch(f"{part}/{part}", name, re.ASCII) or re.search(r"--|\.\.", name) or len(name) > 96:
        raise InputError(
            f"'{name}' is not the name of a repository on the hub; write owner/name, with letters, digits, '-', '_' and '.'"
        )


def check_local(path: str | Path) -> None:
    """Raise `InputError` for a reference where a folder is needed, to write to."""
    if is_reference(path):
        raise InputError(f"'{path}' is on the hub, where nothing can be saved; copy it into a folder with 'caprompt pull' first")


def check_no_pickle(repository: str, names: Collection[str]) -> None:
    """Raise `InputError` if one of the files of a repository may hold code."""
    pickles = sorted(name for name in names if PurePosixPath(name).suffix.lower() in PICKLES)
    if pickles:
        raise InputError(
            f"'{repository}' holds '{pickles[0]}', which may be a pickle, and pickles can run code; "
            "a model of caprompt has safetensors and JSON files only, so nothing of it is used"
        )


def require_hub(repository: str, remedy: str = "") -> None:
    """Raise `InputError` at once if nobody answers at the hub's address."""
    if not is_hub_reachable():
        from huggingface_hub import constants

        raise InputError(
            f"the Hugging Face hub ({constants.ENDPOINT}) cannot be reached for '{repository}'; check the network{remedy}"
        )


@contextmanager
def explain_hub_errors(repository: str) -> Iterator[None]:
    """Replace the errors of the hub's library by one sentence each."""
    from huggingface_hub import errors

    try:
        yield
    except CapromptError:
        raise
    except errors.RevisionNotFoundError as error:
        raise InputError(f"'{repository}' has no such revision; name a branch, a tag or the hash of a commit") from error
    except errors.GatedRepoError as error:
        raise InputError(f"'{repository}' is gated; ask for access on its page, and log in with 'hf auth login'") from error
    except errors.RepositoryNotFoundError as error:
        raise InputError(
            f"there is no model '{repository}' on the hub, or it is private; check the name, or log in with 'hf auth login'"
        ) from error
    # Transport errors are HTTPErrors with newer versions of the library, and OSErrors with older ones.
    except (errors.HTTPError, OSError, ValueError) as error:  # type: ignore[attr-defined]
        status = getattr(getattr(error, "response", None), "status_code", None)
        remedy = "; log in with 'hf auth login' as a user who may do that" if status in (401, 403) else ""
        raise InputError(f"the hub has not served '{repository}' ({first_line(error)}){remedy}") from error


def download_reference(reference: str) -> Path:
    """Download the model that `hf:owner/name` or `hf:owner/name@revision` names, and return its folder in the cache."""
    return download_model(*parse_reference(reference)).folder


def download_model(repository: str, revision: str | None = None) -> Download:
    """Download the files of a model, and its card if there is one, into the hub's cache."""
    check_repository_name(repository)
    if revision is not None and (cached := _find_cached(repository, revision)) is not None:
        return Download(cached, revision)
    require_hub(repository, f", or name the commit of a version that was downloaded before ({PREFIX}{repository}@HASH)")
    from huggingface_hub import HfApi, constants, hf_hub_download

    with explain_hub_errors(repository):
        info = HfApi(endpoint=constants.ENDPOINT).model_info(repository, revision=revision)
        names = {file.rfilename for file in info.siblings or ()}
        check_no_pickle(repository, names)
        if missing := sorted(REQUIRED - names):
            raise InputError(f"'{repository}' is not a model of caprompt: it has no {missing[0]}")

        def fetch(name: str) -> Path:
            return Path(hf_hub_download(repository, name, revision=info.sha, endpoint=constants.ENDPOINT))

        folder = fetch(CONFIG).parent
        for name in (*_list_files(repository, folder), *({CARD} & names)):
            fetch(name)
    return Download(folder, str(info.sha))


def _find_cached(repository: str, revision: str) -> Path | None:
    """Return the folder of a commit in the cache, if all files are there; a branch may have moved on since."""
    if not re.fullmatch(r"[0-9a-f]{40}", revision):
        return None
    from huggingface_hub import try_to_load_from_cache

    config = try_to_load_from_cache(repository, CONFIG, revision=revision)
    if not isinstance(config, str):
        return None
    folder = Path(config).parent
    return folder if all((folder / name).is_file() for name in _list_files(repository, folder)) else None


def _list_files(repository: str, folder: Path) -> list[str]:
    """Return the files that a downloaded `config.json` lists; refuse a foreign one before the rest is downloaded."""
    try:
        names = sorted(read_config(folder)["files"])
    except (ModelFolderError, KeyError, TypeError) as error:
        reason = first_line(error).replace(str(folder), repository)
        raise InputError(f"'{repository}' is not a model of caprompt that this version can read: {reason}") from error
    if not REQUIRED <= {*names, CONFIG} <= FILES:
        raise InputError(f"'{repository}' is not a model of caprompt: its {CONFIG} lists other files")
    return names
