"""The command `audit`: check that predictions do not depend on the batch, and warn of results that look too good."""

from __future__ import annotations

import json
from pathlib import Path

from caprompt.cli.arguments import AsJson, Device, SkipBad
from caprompt.cli.console import out, print_skipped, print_warnings
from caprompt.errors import CapromptError
from caprompt.protocols import make_leak_warning

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
    """Check that no prediction depends on the other images of its batch; exit with status 1 if one does.

    Also warns of results that look too good: test images among the training images, a backbone that was trained on the
    same labels, or an accuracy above that of joint training.

    Examples:

        caprompt audit pets photos/test
        caprompt audit pets photos/test --train photos/week1 --json
        caprompt audit runs/cifar100/model cifar100 --joint runs/cifar100-joint

    With --json, the audit of a run's model is also saved in the run folder, as audit.json, for `caprompt report`.

    Parameters
    ----------
    model
        Folder of the model.
    source
        Folder with a sub-folder of images per class, CSV file of path,label, or name of a dataset for its test images.
    train
        Images that the model was trained on, to look for test images among them; not needed if source is the name of a dataset.
    joint
        Folder of a run of the same method that learned all classes in one task; a higher accuracy than its is suspicious.
    backbone
        Weights file of the backbone, if it was moved.
    """
    from caprompt.classifier import ContinualClassifier
    from caprompt.cli.tables import make_audit_table
    from caprompt.experiments.audit import audit as run_audit
    from caprompt.experiments.audit import (
        find_data_warnings,
        load_audit_images,
        make_joint_warning,
        read_joint_summary,
        save_with_run,
    )

    classifier = ContinualClassifier.load(model, backbone=backbone, device=device)
    test, training_images = load_audit_images(source, train)
    reference = read_joint_summary(joint, classifier) if joint else None
    result = run_audit(classifier, test, skip_bad=skip_bad)
    candidates = [
        make_leak_warning(classifier.method.options),
        *find_data_warnings(classifier, model, source, test, training_images),
        make_joint_warning(result, reference, str(joint)) if reference else None,
    ]
    warnings = [warning for warning in candidates if warning]
    print_skipped(result.skipped)
    print_warnings(warnings)
    if as_json:
        document = {**result.as_dict(), "warnings": warnings}
        print(json.dumps(document, indent=2))
        save_with_run(model, {**document, "source": source})
    else:
        out.print(make_audit_table(result))
    if not result.clean:
        raise CapromptError("predictions change with batch composition; reported accuracies are not valid")
