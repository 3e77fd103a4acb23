"""Model cards: a README with the metadata that the Hugging Face hub reads, and what a user of a model should know.

Accuracies are only stated if they were measured: on labeled images that are given (`measure`), or by the run that trained the model
(`read_recorded_evaluation`). Only those of the honest protocol go into the metadata (`model-index`), where the hub compares models.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path, PureWindowsPath
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from caprompt import __version__, checkpoint, protocols
from caprompt.backbones.registry import MODELS
from caprompt.backbones.weights import list_packaged
from caprompt.checkpoint.folder import RECORDS
from caprompt.checkpoint.hub import CARD, PREFIX, check_local
from caprompt.classifier import ContinualClassifier
from caprompt.data.sources import Source
from caprompt.errors import InputError
from caprompt.experiments.run_folder import RunResult, read_plan
from caprompt.metrics import pooled_accuracy
from caprompt.utils.files import write_bytes
from caprompt.utils.paths import expand_user

__all__ = [
    "DEFAULT_LICENSE",
    "CardOptions",
    "Disclosure",
    "MeasuredAccuracy",
    "make_card",
    "measure",
    "read_recorded_evaluation",
    "write_model_card",
]

DEFAULT_LICENSE = "unknown"  # the hub's word for a license that its author has not stated
TAGS = ("caprompt", "class-incremental-learning", "continual-learning", "image-classification")
MAX_NAMES = 200  # classes that are listed by name


@dataclass(frozen=True)
class Disclosure:
    """What the files of a model reveal about the images that it has learned, beyond trained weights."""

    statistics: tuple[str, ...]  # names of state: sums, means or covariances of their features
    has_digests: bool  # hashes by which learned images are recognized
    can_learn: bool

    def describe(self) -> list[str]:
        """Return a sentence on each thing that is revealed."""
        sentences = []
        if self.statistics:
            sentences.append(
                f"Statistics of the features of the learned images ({', '.join(self.statistics)}): from the float32 sums or the "
                "mean of a class with one image, the feature vector of that image can be computed, and from those of several "
                "images their average."
            )
        if self.has_digests:
            sentences.append("Hashes of the learned images: whoever has a copy of an image can tell whether it was learned.")
        return sentences


@dataclass(frozen=True)
class CardOptions:
    """What a card says that is not in the model."""

    name: str  # owner/name on the hub, or the name of a folder
    license: str
    disclosure: Disclosure
    is_local: bool = False

    @property
    def reference(self) -> str:
        """What to load the model by."""
        return self.name if self.is_local else f"{PREFIX}{self.name}"


@dataclass(frozen=True)
class MeasuredAccuracy:
    """Accuracies on test images, in percent."""

    dataset: str
    images: int
    accuracy: float  # over all images
    average_accuracy: float  # mean over tasks
    protocol: str
    num_unlearned: int = 0  # images of classes that the model has not learned, which were left out


def measure(model: ContinualClassifier, source: Source) -> MeasuredAccuracy:
    """Measure accuracies on labeled images."""
    evaluation = model.evaluate(source)
    name = Path(source).resolve().name if isinstance(source, (str, Path)) else "images"
    return MeasuredAccuracy(
        name,
        evaluation.images,
        evaluation.accuracy,
        evaluation.average_accuracy,
        evaluation.protocol,
        sum(evaluation.unlearned.values()),
    )


def read_recorded_evaluation(folder: Path, model: ContinualClassifier) -> MeasuredAccuracy | None:
    """Return the final test of the run that trained the model in this folder; None without a run, or if it has learned since."""
    run = folder.resolve().parent
    if folder.resolve().name != "model" or not (run / "run.json").is_file():
        return None
    result, plan = RunResult.load(run), read_plan(run)
    names = {name for task in result.tasks for name in task}
    if not result.finished or names != set(model.classes) or model.num_calls != (1 if result.joint else len(result.tasks)):
        return None
    last = result.rows[-1]
    dataset = str(plan["config"]["dataset"])
    dataset = dataset if dataset.startswith(PREFIX) else PureWindowsPath(dataset).name
    return MeasuredAccuracy(
        dataset if plan["test"]["from"] == "test images" else f"{dataset}, held-out training images",
        sum(last.images),
        pooled_accuracy(last.accuracies, last.images),
        result.summary()["ACC"],
        result.protocol,
    )


def make_card(model: ContinualClassifier, options: CardOptions, evaluation: MeasuredAccuracy | None = None) -> str:
    """Return the card of a model as Markdown with YAML front matter."""
    environment = Environment(
        loader=PackageLoader("caprompt.export"),
        autoescape=False,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters["plain"] = _escape_markdown
    return environment.get_template("card.md").render(
        metadata=_make_metadata(model, options, evaluation),
        model=model,
        options=options,
        evaluation=evaluation,
        is_honest=evaluation is not None and _is_honest(evaluation),
        folder=options.name.rpartition("/")[2],
        images=sum(model.images_seen.values()),
        tasks=_limit_names(model.tasks, MAX_NAMES),
        num_more=max(0, len(model.classes) - MAX_NAMES),
        needs_file=model.backbone.name not in {*MODELS, *list_packaged()},
        version=__version__,
    )


def write_model_card(
    folder: str | Path,
    path: str | Path | None = None,
    *,
    evaluate: Source | None = None,
    license: str = DEFAULT_LICENSE,
    backbone: str | Path | None = None,
    device: str = "auto",
) -> Path:
    """Write the card of the model in a folder, by default as `README.md` there, and return its path.

    `evaluate` are labeled images that the accuracy in the card is measured on. A README of someone else is not replaced.
    """
    folder = expand_user(folder)
    check_local(folder)
    path = folder / CARD if path is None else expand_user(path)
    if path.is_dir():
        raise InputError(f"'{path}' is a folder; give the path of the file to write")
    if path.is_file() and "library_name: caprompt" not in path.read_text(encoding="utf-8", errors="replace"):
        raise InputError(f"'{path}' is not a card that was written here before; give another file with out=...")
    model = ContinualClassifier.load(folder, backbone=backbone, device=device)
    evaluation = measure(model, evaluate) if evaluate is not None else read_recorded_evaluation(folder, model)
    options = CardOptions(folder.resolve().name, license, _disclose_folder(model, folder), is_local=True)
    write_bytes(path, make_card(model, options, evaluation).encode())
    return path


def _disclose_folder(model: ContinualClassifier, folder: Path) -> Disclosure:
    """Return what the files of a model folder reveal."""
    method = model.method
    has_digests = RECORDS in checkpoint.read_config(folder)["files"]
    return Disclosure(tuple(method.list_feature_statistics()), has_digests, can_learn=not method.removed_state)


def _make_metadata(model: ContinualClassifier, options: CardOptions, evaluation: MeasuredAccuracy | None) -> str:
    """Return the front matter as YAML."""
    from huggingface_hub import EvalResult, ModelCardData

    results = None
    if evaluation is not None and _is_honest(evaluation):
        rows = {
            "accuracy over all test images, in percent": evaluation.accuracy,
            "mean accuracy over tasks, in percent": evaluation.average_accuracy,
        }
        results = [
            EvalResult(
                task_type="image-classification",
                dataset_type="imagefolder",
                dataset_name=evaluation.dataset,
                metric_type="accuracy",
                metric_name=name,
                metric_value=round(value, 2),
            )
            for name, value in rows.items()
        ]
    fields: dict[str, Any] = {
        "library_name": "caprompt",
        "pipeline_tag": "image-classification",
        "license": options.license,
        "base_model": _find_base_model(model.backbone.name),
        "tags": sorted({*TAGS, model.method.name}),
        "eval_results": results,
        "model_name": options.name.rpartition("/")[2] if results else None,
    }
    return ModelCardData(**fields).to_yaml().strip()


def _limit_names(tasks: Sequence[Sequence[str]], limit: int) -> list[list[str]]:
    """Return the first names of the tasks, `limit` in all.

    >>> _limit_names([["a", "b"], ["c", "d"], ["e"]], 3)
    [['a', 'b'], ['c']]
    """
    limited = []
    for names in tasks:
        limited.append(list(names[:limit]))
        limit -= len(limited[-1])
    return [names for names in limited if names]


def _is_honest(evaluation: MeasuredAccuracy) -> bool:
    return protocols.parse_kind(evaluation.protocol) == "honest"


def _find_base_model(backbone: str) -> str | None:
    """Return the repository of a backbone on the hub, or else its name, where that could be one.

    >>> _find_base_model("vit_base_patch16_224.dino"), _find_base_model("my tiny vit")
    ('timm/vit_base_patch16_224.dino', None)
    """
    model = MODELS.get(backbone)
    if model is not None and model.repo:
        return model.repo
    return backbone if re.fullmatch(r"[\w.-]{1,96}", backbone, re.ASCII) else None


def _escape_markdown(text: str) -> str:
    r"""Return text that Markdown shows as it is, in one line.

    >>> _escape_markdown("a|b *c*\n<d>")
    'a\\|b \\*c\\* \\<d\\>'
    """
    return re.sub(r"([\\`*_{}\[\]<>()#|~])", r"\\\1", " ".join(text.split()))
