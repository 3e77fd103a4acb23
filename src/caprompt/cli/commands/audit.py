"""The command `audit`: the examination of `audit.py`, and what else casts doubt on a model's figures."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from caprompt.cli.console import out, tell_skipped, tell_warnings
from caprompt.cli.flags import AsJson, Device, SkipBad
from caprompt.errors import CapromptError, InputError
from caprompt.experiments import data_warnings
from caprompt.protocols import single, warning

if TYPE_CHECKING:
    from caprompt.classifier import ContinualClassifier
    from caprompt.data import Samples
    from caprompt.experiments.audit import Audit

__all__ = ["AUDIT", "above_joint", "audit"]

AUDIT = "audit.json"


def audit(
    model: Path,
    source: str,
    *,
    train: str | None = None,
    joint: Path | None = None,
    as_json: AsJson = False,
    skip_bad: SkipBad = False,
    backbone: str | None = None,
    device: Device = "auto",
) -> None:
    """Check that no image's answer depends on the other images of its batch; exit status 1 if any does.

    Warns as well where the figures look too good: test images among the training images, a backbone that was taught the labels,
    or an accuracy above joint training.

    Examples:

        caprompt audit pets photos/test
        caprompt audit pets photos/test --train photos/week1 --json
        caprompt audit runs/cifar100/model cifar100 --joint runs/cifar100-joint

    With --json, the audit of a run's model is also kept in the run's folder, as audit.json, for `caprompt report`.

    Parameters
    ----------
    model
        The model's folder.
    source
        A folder with a sub-folder of images per class, a CSV of path,label, or a data set's name for its test images.
    train
        The images that the model was trained on, to look for test images among them; known where source is a data set's name.
    joint
        The folder of a run of the same method that learned all classes in one task; doing better is a warning sign.
    backbone
        Where the backbone's file is, if it has moved.
    """
    from caprompt.classifier import ContinualClassifier
    from caprompt.cli.tables import audit_table
    from caprompt.experiments.audit import audit as examine

    classifier = ContinualClassifier.load(model, backbone=backbone, device=device)
    test, trained_on = images_of(source, train)
    reference = joint_figures(joint, classifier) if joint else None
    found = examine(classifier, test, skip_bad=skip_bad)
    doubts = [warning(classifier.method.options), *doubts_about(classifier, model, source, test, trained_on)]
    doubts.append(above_joint(found, reference, str(joint)) if reference else None)
    warnings = [doubt for doubt in doubts if doubt]
    tell_skipped(found.skipped)
    tell_warnings(warnings)
    if as_json:
        document = {**found.as_dict(), "warnings": warnings}
        print(json.dumps(document, indent=2))
        keep_with_run(model, {**document, "source": source})
    else:
        out.print(audit_table(found))
    if not found.clean:
        raise CapromptError("answers of this model depend on the company that an image is in; its figures cannot be trusted")


def images_of(source: str, train: str | None) -> tuple[Samples, Samples | None]:
    """The images to test with, and those to look for them among, if they are known."""
    from caprompt.data import load_dataset, read
    from caprompt.data.datasets.registry import DATASETS

    if source in DATASETS:
        data = load_dataset(source)
        return data.test, read(train) if train else data.train
    return read(source), read(train) if train else None


def doubts_about(
    model: ContinualClassifier, folder: Path, source: str, test: Samples, trained_on: Samples | None
) -> list[str | None]:
    """What the images and the backbone's past say about the figures."""
    from caprompt.data.datasets.registry import DATASETS
    from caprompt.data.duplicates import occurring

    dataset = source if source in DATASETS else dataset_of(folder)
    repeated = len(occurring(test, trained_on)) if trained_on else 0
    return [data_warnings.repeated_images(repeated, len(test)), data_warnings.labels_seen(model.backbone.name, dataset)]


def dataset_of(folder: Path) -> str:
    """The data set that a run, whose model this is, was on; "" for a model that stands for itself."""
    try:
        return str(json.loads((folder.resolve().parent / "run.json").read_text(encoding="utf-8"))["config"]["dataset"])
    except (OSError, ValueError, KeyError, TypeError):
        return ""


def keep_with_run(model: Path, document: dict[str, Any]) -> None:
    """Write the audit of a run's model into the run's folder, with the hash of what was audited: a report shows it."""
    from caprompt import checkpoint

    home = model.resolve().parent
    if (home / "run.json").is_file():
        state = checkpoint.read_config(model)["files"][checkpoint.STATE]
        checkpoint.write_json(home / AUDIT, {**document, "state": state})


def joint_figures(place: Path, model: ContinualClassifier) -> dict[str, float]:
    """What a joint run reached; one of another method, backbone, protocol or other classes is refused."""
    from caprompt.experiments.execution import Results, read_plan
    from caprompt.protocols import protocol

    folder = place.parent if place.is_file() else place
    try:
        plan, results = read_plan(folder), Results.load(folder)
        theirs = plan["config"]["method"], plan["backbone"]["sha256"], sorted(name for task in results.tasks for name in task)
    except (KeyError, TypeError) as error:
        raise InputError(f"'{place}' does not hold a run that can be compared with") from error
    if len(results.tasks) != 1 or not results.finished:
        raise InputError(f"the run in '{place}' is no finished joint training; give one that learned all classes in one task")
    ours = model.method.name, model.backbone.sha256, sorted(model.classes)
    for what, one, other in zip(("method", "backbone", "set of classes"), theirs, ours, strict=True):
        if one != other:
            raise InputError(f"the joint run in '{place}' cannot be compared with this model: it has another {what}")
    single([results.protocol, protocol(model.method.options)])
    return results.summary()


def above_joint(found: Audit, joint: dict[str, float], place: str) -> str | None:
    """What to say where a model does better, in whatever arrangement, than the same method with all classes at once."""
    best = max(found.arrangements, key=lambda each: each.average_accuracy)
    pooled = max(each.accuracy for each in found.arrangements)
    if best.average_accuracy <= joint["ACC"] and pooled <= joint["pooled"]:
        return None
    return (
        f"ACC {best.average_accuracy:.2f} and accuracy {pooled:.2f} against {joint['ACC']:.2f} and {joint['pooled']:.2f} of joint "
        f"training in '{place}': learning piece by piece should not do better ({best.name})"
    )
