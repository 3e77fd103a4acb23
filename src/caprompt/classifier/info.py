"""What a saved model holds: classes, lessons, backbone, size on disk, and what is kept of images."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from caprompt import __version__, checkpoint
from caprompt.checkpoint.model import IN_PROGRESS, get_saved_options, has_stopped_call
from caprompt.methods import get_method
from caprompt.utils.files import get_current_path
from caprompt.utils.paths import expand_user

__all__ = ["ClassInfo", "ModelInfo", "describe_kept", "make_info", "measure_files", "read_info"]

UNKNOWN_DATE = ""  # of lessons of models that recorded none

# What tensors of a name say about the images behind them, and who could read it. The first match counts.
KEPT = (
    ("kept_features", "the features of every image, from which a rough likeness of the image can be computed"),
    (
        "gram",
        "sums over images of products of their features; with a single image of a class its feature can be computed from them",
    ),
    ("sums", "the sum of the projected features of each class, which for a class with one image is that image's"),
    ("mean", "the mean feature of each class, which for a class with one image is that image's"),
    ("covariance", "the covariance of the features of each class"),
    ("variance", "the variance of each feature in each class"),
    ("strength_evidence", "sums over images of the errors on them when each was left out, a few numbers for the whole model"),
    ("digests", "eight bytes of the hash of every image file, by which anyone who has a file can tell whether it was learned"),
)


@dataclass(frozen=True)
class ClassInfo:
    """A class of a model."""

    name: str
    images: int  # that were learned
    tasks: tuple[int, ...]  # that brought it, from 1; several if classes were joined
    first: str  # date of the first lesson with it, or empty
    last: str


@dataclass(frozen=True)
class ModelInfo:
    """A model; what follows `kept` is known of a saved one only."""

    method: str
    options: Mapping[str, Any]  # other than the defaults
    backbone: Mapping[str, str]
    seed: int
    version: str  # of caprompt, that wrote it
    classes: tuple[ClassInfo, ...]
    lessons: tuple[Mapping[str, Any], ...]  # and edits, in their order
    kept: tuple[str, ...]  # sentences on what is kept of images, and what that reveals
    folder: str = ""
    files: Mapping[str, int] = field(default_factory=dict)  # bytes on disk by part
    versions: int = 0  # earlier ones, which can be undone to
    stopped: bool = False  # whether a call of `learn` was stopped and can be resumed
    evaluation: Mapping[str, Any] = field(default_factory=dict)  # the last one of this version, or empty

    @property
    def images(self) -> int:
        """Number of images that were learned."""
        return sum(each.images for each in self.classes)

    @property
    def bytes(self) -> int:
        """Size on disk."""
        return sum(self.files.values())

    def as_dict(self) -> dict[str, Any]:
        """Return a dictionary for JSON."""
        return asdict(self)


def read_info(folder: str | Path) -> ModelInfo:
    """Read what a model folder holds, without loading the backbone."""
    folder = expand_user(folder)
    return replace(
        make_info(checkpoint.read(folder)),
        folder=str(folder),
        files=measure_files(folder),
        versions=len(checkpoint.list_versions(folder)),
        stopped=has_stopped_call(folder),
        evaluation=checkpoint.read_evaluation(folder),
    )


def make_info(saved: checkpoint.Saved) -> ModelInfo:
    """Return what a model holds, apart from its folder."""
    config = saved.config
    defaults = get_method(config["method"]).options_class().model_dump(mode="json")
    options = get_saved_options(config)
    lessons = tuple(config.get("lessons", ()))
    return ModelInfo(
        method=config["method"],
        options={name: value for name, value in options.items() if value != defaults[name]},
        backbone=config["backbone"],
        seed=config["seed"],
        version=config.get("caprompt", __version__),
        classes=_list_classes(saved.classes, lessons),
        lessons=lessons,
        kept=describe_kept([*saved.tensors, *saved.records]),
    )


def describe_kept(tensor_names: Sequence[str]) -> tuple[str, ...]:
    """Return sentences on what tensors of these names reveal about the learned images.

    >>> describe_kept(["method.head.weight"])
    ()
    >>> describe_kept(["method.head.statistics.mean", "method.head.statistics.count"])
    ("the mean feature of each class, which for a class with one image is that image's",)
    """
    ends = {name.rpartition(".")[2] for name in tensor_names}
    return tuple(sentence for name, sentence in KEPT if name in ends)


def _list_classes(entries: Sequence[Mapping[str, Any]], lessons: Sequence[Mapping[str, Any]]) -> tuple[ClassInfo, ...]:
    images: Counter[str] = Counter()
    tasks: dict[str, list[int]] = {}
    dates: dict[str, list[str]] = {}
    for entry in entries:
        images[entry["name"]] += entry["images"]
        tasks.setdefault(entry["name"], []).append(entry["task"])
    for lesson in lessons:
        for name in lesson.get("classes", ()):
            dates.setdefault(name, []).append(lesson["date"])
    return tuple(
        ClassInfo(name, images[name], tuple(own), dates.get(name, [UNKNOWN_DATE])[0], dates.get(name, [UNKNOWN_DATE])[-1])
        for name, own in tasks.items()
    )


def measure_files(folder: Path) -> dict[str, int]:
    """Return the bytes of each file of the model, and of earlier versions and of a stopped call together."""
    sizes = {name: get_current_path(folder, name).stat().st_size for name in checkpoint.list_files(folder)}
    parts = {"earlier versions": checkpoint.VERSIONS, "stopped call": IN_PROGRESS}
    for part, name in parts.items():
        total = sum(path.stat().st_size for path in (folder / name).rglob("*") if path.is_file())
        sizes |= {part: total} if total else {}
    return sizes
