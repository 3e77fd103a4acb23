"""Merging of saved models: one that knows what several were taught, the same as if it had been taught everything itself.

That is possible where all that the models do not have in common are sums over images: they share the backbone, the random
projection, and what was trained, which is nothing, or was trained in a first task that they share. Then sums are added up, and the
classifier is solved once for all. The order of the models changes only the order of the classes.

Models that were taught from copies of one model (`base`) share its images. Its sums are in all of theirs, and must count once:

    merged = first + (second - base) + (third - base) + ...
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from caprompt import checkpoint
from caprompt.calibration import Evidence, fit_calibration, pool_evidence
from caprompt.classifier.class_table import ClassTable
from caprompt.classifier.model import ContinualClassifier
from caprompt.classifier.state import check_local_folder
from caprompt.errors import CapromptWarning, InputError
from caprompt.utils.paths import expand_user

__all__ = ["merge", "merge_models"]

LOGIT_SCALES = ("ridge_scale", "scale")  # options at prediction that the evidence for the calibration depends on


def merge(
    folders: Sequence[str | Path],
    into: str | Path,
    *,
    base: str | Path | None = None,
    backbone: str | Path | None = None,
    device: str = "auto",
) -> ContinualClassifier:
    """Merge saved models into a new folder; they stay as they are. `base` is the saved model that all of them started from."""
    target = expand_user(into)
    if len({expand_user(folder).resolve() for folder in folders}) < max(2, len(folders)):
        raise InputError("two or more different models are needed to merge them")
    check_local_folder(target)
    if checkpoint.exists(target):
        raise InputError(f"'{target}' holds a model already; choose another folder for the merged one")

    def load(folder: str | Path) -> ContinualClassifier:
        return ContinualClassifier.load(expand_user(folder), backbone=backbone, device=device)

    models = {str(folder): load(folder) for folder in folders}
    merged = merge_models(models, None if base is None else load(base))
    merged.save(target)
    return merged


def merge_models(models: Mapping[str, ContinualClassifier], base: ContinualClassifier | None = None) -> ContinualClassifier:
    """Return a new model that knows what all of these were taught; they are given by the names that errors call them.

    `base` is a model that each of them is a continuation of. Raise `InputError` if models cannot be merged.
    """
    (first_name, first), *others = models.items()
    for name, model in models.items():
        _check_alone(name, model)
        if base is not None:
            _check_continues(name, model, base)
    for name, model in others:
        _check_pair(first_name, first, name, model)
    _check_overlap(models, base)
    merged = _make_empty(first)
    for model in models.values():
        _add_classes(merged, model)
    common = {name: tensor for name, tensor in first.method.state().items() if _find_part(name, first.method.common_state)}
    merged.method.load_state_dict(common, strict=False)
    for model in models.values():
        _add(merged, model, sign=1)
    for _ in others if base is not None else ():
        assert base is not None
        _add(merged, base, sign=-1)
    merged.method.finish_merge()
    _merge_records(merged, models, base)
    _merge_calibration(merged, models)
    return merged


# -- checks --------------------------------------------------------------------------------------------------------------------


def _check_alone(name: str, model: ContinualClassifier) -> None:
    """Raise `InputError` unless a model can be merged with any other."""
    model.require_learning_state()
    reason = model.method.explain_unmergeable()
    if model.table.is_joined:
        reason = "classes of it were joined; merge the models first, and join classes then"
    elif sum(model.table.counts) and not model.table.digests:
        reason = "it is of a version that did not record which images were learned, so that some might count twice"
    elif not model.classes:
        reason = "it has not learned any class yet"
    if reason is not None:
        raise InputError(f"'{name}' cannot be merged: {reason}")


def _check_pair(name: str, model: ContinualClassifier, other_name: str, other: ContinualClassifier) -> None:
    """Raise `InputError` unless the sums of two models are sums of the same features."""
    reason = _explain_difference(model, other)
    if reason is not None:
        raise InputError(f"'{name}' and '{other_name}' cannot be merged: {reason}")


def _explain_difference(model: ContinualClassifier, other: ContinualClassifier) -> str | None:
    if model.backbone.sha256 != other.backbone.sha256:
        return f"their backbones differ ({model.backbone.name} and {other.backbone.name})"
    if model.method.name != other.method.name:
        return f"their methods differ ({model.method.name} and {other.method.name})"
    options, other_options = model.method.options.model_dump(), other.method.options.model_dump()
    ignored = {*model.method.options.at_prediction.difference(LOGIT_SCALES), *model.method.merged_options}
    for option in options.keys() - ignored:
        if options[option] != other_options[option]:
            return f"their option '{option}' differs ({options[option]} and {other_options[option]})"
    for label in set(model.classes) & set(other.classes):
        if (label in model.table.integers) != (label in other.table.integers):
            return f"the class '{label}' is an integer in one and a text in the other; rename it in one of them"
    state, other_state = model.method.state(), other.method.state()
    for name, tensor in state.items():
        part = _find_part(name, model.method.common_state)
        if part is not None and not torch.equal(tensor, other_state.get(name, tensor.new_zeros(0))):
            return model.method.common_state[part]
    return None


def _check_continues(name: str, model: ContinualClassifier, base: ContinualClassifier) -> None:
    """Raise `InputError` unless a model has learned everything that the base has, and before anything else."""
    _check_pair(name, model, "the base", base)
    lessons = model.lessons[: len(base.lessons)]
    if lessons != base.lessons or not base.table.digests.keys() <= model.table.digests.keys():
        raise InputError(f"'{name}' was not taught from a copy of the base; give the model that all of them started from")
    if getattr(model.method.options, "keep_features", False):
        raise InputError(f"'{name}' keeps features of every image, from which those of a base are not taken out; merge without one")


def _check_overlap(models: Mapping[str, ContinualClassifier], base: ContinualClassifier | None) -> None:
    """Raise `InputError` for an image that two models have learned, apart from those of the base: it would count twice."""
    shared = set() if base is None else set(base.table.digests)
    seen: dict[bytes, str] = {}
    for name, model in models.items():
        twice = [digest for digest in model.table.digests if digest not in shared and digest in seen]
        if twice:
            raise InputError(
                f"{len(twice)} image(s) of '{name}' were learned by '{seen[twice[0]]}' as well and would count twice; if both were "
                "taught from copies of one model, give that with base=..., else teach them different images"
            )
        seen |= dict.fromkeys(model.table.digests, name)


def _find_part(name: str, parts: Mapping[str, str]) -> str | None:
    """Return the entry of `common_state` that a tensor of the state belongs to."""
    return next((part for part in parts if f"{name}.".startswith(f"{part}.")), None)


# -- the merged model ----------------------------------------------------------------------------------------------------------


def _make_empty(first: ContinualClassifier) -> ContinualClassifier:
    options = {**first.method.options.model_dump(mode="json"), **first.method.merged_options}
    return ContinualClassifier(first.method.name, first.backbone, seed=first.seed, device=str(first.device), **options)


def _add_classes(merged: ContinualClassifier, model: ContinualClassifier) -> None:
    """Add the classes of a model that are new, in its tasks."""
    for names in model.tasks:
        new = [name for name in names if name not in merged.classes]
        if new:
            merged.table.add(new)
            merged.method.set_class_names(merged.table.output_names)
            merged.method.begin_task(len(new), torch.Generator())


def _add(merged: ContinualClassifier, model: ContinualClassifier, sign: int) -> None:
    """Add the sums and image counts of a model, or take them out again."""
    outputs = _map_outputs(merged.table, model.table)
    classes = torch.tensor(outputs, device=merged.device)
    merged.method.merge(model.method, classes, sum(model.table.counts), sign)
    for output, count in zip(outputs, model.table.counts, strict=True):
        merged.table.counts[output] += sign * count


def _map_outputs(table: ClassTable, other: ClassTable) -> list[int]:
    """Return the output of a table for each output of another."""
    first = dict(zip(table.names, table.first_outputs(), strict=True))
    return [first[name] for name in other.output_names]


def _merge_records(
    merged: ContinualClassifier, models: Mapping[str, ContinualClassifier], base: ContinualClassifier | None
) -> None:
    """Merge lessons, history and digests of images; those of a base count once."""
    parts = [base, *models.values()] if base is not None else list(models.values())
    for number, model in enumerate(parts):
        skipped = base if number and base is not None else None
        known_lessons, known_calls = (len(skipped.lessons), skipped.num_calls) if skipped is not None else (0, 0)
        shift = merged.num_calls - known_calls
        merged.history += [{**each, "call": each["call"] + shift} for each in model.history if each["call"] >= known_calls]
        merged.table.lessons += model.lessons[known_lessons:]
        merged.num_calls += model.num_calls - known_calls
        outputs = _map_outputs(merged.table, model.table)
        merged.table.digests |= {digest: outputs[output] for digest, output in model.table.digests.items()}
        merged.table.integers |= model.table.integers
    merged.table.lessons.sort(key=lambda lesson: lesson["date"])
    lesson: dict[str, Any] = {"kind": "merge", **merged.describe_lesson(), "from": [Path(name).name for name in models]}
    merged.table.lessons.append(lesson)


def _merge_calibration(merged: ContinualClassifier, models: Mapping[str, ContinualClassifier]) -> None:
    """Fit the calibration to the evidence of all models; what they have from a base, if they still need it, counts once."""
    evidence: list[Evidence] = []
    for name, model in models.items():
        evidence += [each for each in model.evidence if not any(torch.equal(each.losses, other.losses) for other in evidence)]
        if model.calibration.images and not model.evidence:
            message = f"what '{name}' was calibrated with is not in its folder, so that it does not count for the merged model"
            warnings.warn(f"{message}; calibrate that with 'caprompt calibrate'", CapromptWarning, stacklevel=3)
    if evidence:
        merged.calibration, merged.evidence = fit_calibration([pool_evidence(evidence)])
