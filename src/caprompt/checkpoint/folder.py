"""On-disk format of a model folder: `config.json`, `classes.json`, `metrics.jsonl`, `state.safetensors`, `records.safetensors`.

A folder stays readable whenever the writer is killed. A new version is first written completely into a draft, `.next-.../`,
which is then renamed to `.ready/`: with that rename the new version takes effect. Its files are then moved into place one by one.
A reader takes each file from `.ready/` as long as it is there; a writer that finds a `.ready/` finishes the move first. There is
one writer at a time (`lock`).

`versions/` holds the files of earlier versions, the newest under the highest number, so that a lesson can be undone. They are
further names of the files that the next version replaced, so that writing them takes no time.

`config.json` holds the SHA-256 of every file and of itself; the latter identifies a version. No pickle is ever read or written.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from safetensors import SafetensorError, safe_open
from safetensors.numpy import save as dump_arrays
from safetensors.torch import load as load_tensors
from safetensors.torch import save as dump_tensors
from torch import Tensor

from caprompt import __version__
from caprompt.checkpoint import validation
from caprompt.errors import InputError, ModelFolderError, first_line
from caprompt.utils.files import check_no_link, commit, encode_json, finish_commit, get_current_path, read_json

__all__ = [
    "CONFIG",
    "EVALUATION",
    "FORMAT",
    "STATE",
    "VERSIONS",
    "Saved",
    "discard",
    "exists",
    "list_files",
    "list_versions",
    "read",
    "read_config",
    "read_evaluation",
    "read_identity",
    "revert",
    "visit_files",
    "write",
]

# Since 2, only one triangle of the symmetric sums of ridge regression is saved; since 3, two classes may be joined under one name.
FORMAT = 3
T = TypeVar("T")
HASHED_BYTES = 1 << 20  # of a large file that are read at once
MAX_READS = 4  # attempts to read a folder before it counts as damaged
CONFIG, CLASSES, METRICS, STATE = "config.json", "classes.json", "metrics.jsonl", "state.safetensors"
EVALUATION = "evaluation.json"  # of the last evaluation of the current version, if there was one
RECORDS = "records.safetensors"  # absent from older models
VERSIONS = "versions"  # sub-folder with earlier versions
# What the parsers of JSON and of tensors raise for damaged files.
_DAMAGED = (SafetensorError, ArithmeticError, AttributeError, LookupError, MemoryError, RuntimeError, TypeError, ValueError)


@dataclass(frozen=True)
class Saved:
    """Contents of a model folder."""

    config: Mapping[str, Any]
    classes: Sequence[Mapping[str, Any]]
    tensors: Mapping[str, Tensor] = field(repr=False)
    metrics: Sequence[Mapping[str, Any]] = ()
    records: Mapping[str, Tensor] = field(default_factory=dict, repr=False)  # of lessons: digests of images, calibration

    @property
    def identity(self) -> str:
        """The hash that identifies this version of the model, once it has been read from a folder."""
        return _hash_config(self.config)


def exists(folder: Path) -> bool:
    """Return whether the folder holds a complete model."""
    try:
        return get_current_path(folder, CONFIG).is_file()
    except ValueError:  # a name that no file can have, such as one with a null byte
        return False


def write(folder: Path, saved: Saved, *, num_versions: int = 0) -> str:
    """Replace the contents of the folder by `saved`, atomically, and return the identity of this version.

    The version before it and up to `num_versions` - 1 earlier ones are kept in `versions/`.
    """
    files = {
        CLASSES: encode_json(saved.classes),
        METRICS: "".join(json.dumps(record) + "\n" for record in saved.metrics).encode(),
        STATE: _encode_tensors(saved.tensors),
        **({RECORDS: _encode_tensors(saved.records)} if saved.records else {}),
    }
    config = {
        "format": FORMAT,
        "caprompt": __version__,
        **saved.config,
        "files": {name: hashlib.sha256(content).hexdigest() for name, content in files.items()},
    }
    identity = _hash_config(config)
    if exists(folder) and read_identity(folder) == identity:
        return identity
    files[CONFIG] = encode_json({**config, "sha256": identity})
    finish_commit(folder)
    earlier = list_versions(folder)
    links = {}
    if num_versions and exists(folder):
        number = earlier[-1] + 1 if earlier else 0
        links = {f"{VERSIONS}/{number}/{name}": get_current_path(folder, name) for name in list_files(folder)}
    surplus = earlier[: max(0, len(earlier) + bool(links) - num_versions)]
    removed = [f"{VERSIONS}/{number}" for number in surplus] if links else [VERSIONS]
    removed.append(EVALUATION)  # it was of the version before
    commit(folder, files, links=links, remove=removed, may_finish_later=True)
    return identity


def revert(folder: Path) -> None:
    """Replace the model by the version before it, byte for byte; the very first one by nothing."""
    finish_commit(folder)
    names = list_files(folder)
    earlier = list_versions(folder)
    if not earlier:
        commit(folder, {}, remove=[*names, VERSIONS], may_finish_later=True)
        return
    previous = folder / VERSIONS / str(earlier[-1])
    links = {path.name: path for path in sorted(previous.iterdir())}
    gone = [name for name in names if name not in links]
    gone.append(VERSIONS if len(earlier) == 1 else f"{VERSIONS}/{earlier[-1]}")
    commit(folder, {}, links=links, remove=gone, may_finish_later=True)


def list_files(folder: Path) -> list[str]:
    """Return the names of the files of the current version of a model."""
    names = [*read_config(folder)["files"], CONFIG]
    return [*names, EVALUATION] if get_current_path(folder, EVALUATION).is_file() else names


def list_versions(folder: Path) -> list[int]:
    """Return the numbers of the earlier versions in a folder, the oldest first."""
    check_no_link(folder / VERSIONS)
    return sorted(int(path.name) for path in (folder / VERSIONS).glob("*") if path.name.isdecimal())


def read(folder: Path) -> Saved:
    """Read a folder and verify every hash; raise `ModelFolderError` if anything is missing or damaged."""
    return _retry(_read, folder)


def read_config(folder: Path) -> Mapping[str, Any]:
    """Read and verify `config.json` only, without loading the tensors."""
    return _retry(_read_checked_config, folder)


def read_evaluation(folder: Path) -> Mapping[str, Any]:
    """Read the last evaluation of the current version, empty if there was none; raise `ModelFolderError` if it is damaged."""
    try:
        evaluation = read_json(get_current_path(folder, EVALUATION))
        validation.check_evaluation(evaluation)
    except (InputError, OSError, RecursionError) as error:
        raise ModelFolderError(
            f"{EVALUATION} of '{folder}' is damaged ({first_line(error)[:200]}); remove it, or evaluate the model again"
        ) from error
    return evaluation


def read_identity(folder: Path) -> str:
    """Return the hash that identifies the version of a model in a folder: equal only for equal files."""
    return _hash_config(read_config(folder))


def visit_files(folder: Path, visit: Callable[[Iterator[tuple[str, bytes]]], T]) -> T:
    """Call `visit` with the names and verified contents of the files of one version; again, if a writer came in between."""
    return _retry(lambda folder: visit(_iterate_files(folder)), folder)


def _iterate_files(folder: Path) -> Iterator[tuple[str, bytes]]:
    config = _read_checked_config(folder)
    for name, digest in config["files"].items():
        yield name, _read_checked_file(folder, name, digest)
    evaluation = get_current_path(folder, EVALUATION)
    if evaluation.is_file():
        yield EVALUATION, evaluation.read_bytes()
    content = get_current_path(folder, CONFIG).read_bytes()
    if json.loads(content) != {**config, "sha256": _hash_config(config)}:
        raise ModelFolderError(f"'{folder}' is being changed by another call; try again")
    yield CONFIG, content


def _retry(reader: Callable[[Path], T], folder: Path) -> T:
    """Read again after a failure: a concurrent writer may just be moving its files, so that two versions were seen."""
    for _ in range(MAX_READS - 1):
        try:
            return reader(folder)
        except (ModelFolderError, FileNotFoundError):
            time.sleep(0.02)
    return reader(folder)


def _read(folder: Path) -> Saved:
    config = _read_checked_config(folder)
    digests = dict(config["files"])
    tensors = _map_checked_tensors(folder, digests.pop(STATE))
    files = {name: _read_checked_file(folder, name, digest) for name, digest in digests.items()}
    with _naming(folder, CLASSES):
        classes = json.loads(files[CLASSES])
        validation.check_classes(classes, config["task_sizes"])
    with _naming(folder, METRICS):
        metrics = [json.loads(line) for line in files[METRICS].splitlines()]
        validation.check_metrics(metrics)
    with _naming(folder, STATE):
        validation.check_tensors(tensors, config)
    with _naming(folder, RECORDS):
        records = load_tensors(files[RECORDS]) if RECORDS in files else {}
        validation.check_records(records, len(classes))
    return Saved(config, classes, tensors, metrics, records)


def _map_checked_tensors(folder: Path, digest: str) -> dict[str, Tensor]:
    """Map the tensors of a model into memory: most of them are sums that only learning needs, and predictions never read.

    A file is never written to, only replaced, so that what is mapped does not change.
    """
    path = _find_file(folder, STATE)
    if not _is_utf8(path):  # safetensors cannot open such a path
        with _naming(folder, STATE):
            return load_tensors(_read_checked_file(folder, STATE, digest))
    with path.open("rb") as file:
        found, buffer = hashlib.sha256(), bytearray(HASHED_BYTES)
        while count := file.readinto(buffer):
            found.update(memoryview(buffer)[:count])
        _check_digest(folder, STATE, found.hexdigest(), digest)
        with _naming(folder, STATE), safe_open(path, framework="pt") as opened:
            names = opened.keys()
            tensors = {name: opened.get_tensor(name) for name in names}
        if not os.path.samestat(os.fstat(file.fileno()), path.stat()):
            raise ModelFolderError(f"'{folder}' is being changed by another call; try again")
    return tensors


@contextmanager
def _naming(folder: Path, name: str) -> Iterator[None]:
    """Turn what the parsers and checks of a file raise into a sentence that names the file."""
    try:
        yield
    except _DAMAGED as error:
        raise ModelFolderError(
            f"{name} of '{folder}' is damaged ({first_line(error)[:200]}); restore the folder from a backup"
        ) from error


def discard(folder: Path) -> None:
    """Delete a model folder, `config.json` first, so that a partly deleted folder does not count as a model."""
    check_no_link(folder)
    if folder.is_dir():
        finish_commit(folder)
        (folder / CONFIG).unlink(missing_ok=True)
        shutil.rmtree(folder)


def _read_checked_config(folder: Path) -> dict[str, Any]:
    if not exists(folder):
        raise ModelFolderError(f"'{folder}' does not hold a caprompt model (it has no {CONFIG})")
    try:
        config: dict[str, Any] = json.loads(get_current_path(folder, CONFIG).read_bytes())
        version = int(config["format"])
        own_digest = config.pop("sha256", None)
    except _DAMAGED as error:
        raise ModelFolderError(f"{CONFIG} of '{folder}' is damaged; restore the folder from a backup") from error
    if version > FORMAT:
        raise ModelFolderError(
            f"'{folder}' was written by a newer caprompt (format {version}, this one reads up to {FORMAT}); upgrade caprompt"
        )
    if own_digest != _hash_config(config):
        raise ModelFolderError(f"{CONFIG} of '{folder}' was modified and does not match its hash; restore the folder from a backup")
    with _naming(folder, CONFIG):
        validation.check_config(config)
    if not {CLASSES, METRICS, STATE} <= config["files"].keys() <= {CLASSES, METRICS, STATE, RECORDS}:
        raise ModelFolderError(f"'{folder}' is not a model of caprompt: its {CONFIG} lists other files")
    return config


def _is_utf8(path: Path) -> bool:
    """Return whether a path is text; the operating system allows any bytes."""
    try:
        str(path).encode()
    except UnicodeEncodeError:
        return False
    return True


def _find_file(folder: Path, name: str) -> Path:
    path = get_current_path(folder, name)
    if not path.is_file():
        raise ModelFolderError(f"'{folder}' is incomplete: {name} is missing; restore the folder from a backup")
    return path


def _read_checked_file(folder: Path, name: str, digest: str) -> bytes:
    content = _find_file(folder, name).read_bytes()
    _check_digest(folder, name, hashlib.sha256(content).hexdigest(), digest)
    return content


def _check_digest(folder: Path, name: str, found: str, expected: str) -> None:
    if found != expected:
        raise ModelFolderError(
            f"{name} of '{folder}' is damaged or was modified and does not match its hash; restore the folder from a backup"
        )


def _encode_tensors(tensors: Mapping[str, Tensor]) -> bytes:
    """Return the contents of a safetensors file; as arrays, since `safetensors.torch.save` leaks some KB for every new size."""
    on_cpu = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    content: bytes
    try:
        content = dump_arrays({name: tensor.numpy() for name, tensor in on_cpu.items()})
    except TypeError:  # a dtype that NumPy does not have, such as bfloat16
        content = dump_tensors(on_cpu)
    return content


def _hash_config(config: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(config, sort_keys=True).encode()).hexdigest()
