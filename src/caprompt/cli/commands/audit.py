"""The command `audit`: the examination of `audit.py`, and what else casts doubt on a model's figures."""

from __future__ import annotations

import json
from pathlib import Path

from caprompt.cli.arguments import AsJson, Device, SkipBad
from caprompt.cli.console import out, print_skipped, print_warnings
from caprompt.errors import CapromptError
from caprompt.protocols import warning

__all__ = ["audit"]


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
    from caprompt.experiments.audit import find_data_warnings, joint_warning, load_audit_images, read_joint_summary, save_with_run

    classifier = ContinualClassifier.load(model, backbone=backbone, device=device)
    test, trained_on = load_audit_images(source, train)
    reference = read_joint_summary(joint, classifier) if joint else None
    found = examine(classifier, test, skip_bad=skip_bad)
    doubts = [warning(classifier.method.options), *find_data_warnings(classifier, model, source, test, trained_on)]
    doubts.append(joint_warning(found, reference, str(joint)) if reference else None)
    warnings = [doubt for doubt in doubts if doubt]
    print_skipped(found.skipped)
    print_warnings(warnings)
    if as_json:
        document = {**found.as_dict(), "warnings": warnings}
        print(json.dumps(document, indent=2))
        save_with_run(model, {**document, "source": source})
    else:
        out.print(audit_table(found))
    if not found.clean:
        raise CapromptError("answers of this model depend on the company that an image is in; its figures cannot be trusted")
