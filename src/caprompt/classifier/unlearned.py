"""Test images of classes that a model has not learned: left out, refused, or kept apart to be counted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from caprompt.data.samples import Samples
from caprompt.errors import InputError, OptionError
from caprompt.utils.text import join_names

__all__ = ["SKIP", "check_choice", "describe_unlearned", "make_unlearned_error", "split_learned"]

SKIP, REFUSE, COUNT = "skip", "refuse", "count"  # values of `unknown`


def check_choice(unknown: str, give_task: bool) -> None:
    """Raise for a value of `unknown` that does not exist, or that does not go with `give_task`."""
    if unknown not in (SKIP, REFUSE, COUNT):
        raise OptionError(f"unknown must be '{SKIP}', '{REFUSE}' or '{COUNT}', not '{unknown}'")
    if unknown == COUNT and give_task:
        raise OptionError("images of unlearned classes have no task to give; leave out give_task=True or unknown='count'")


def split_learned(samples: Samples, learned: Sequence[str], unknown: str) -> tuple[Samples, Samples]:
    """Return the samples of learned classes, and those of others as far as they are to be counted.

    At least one class must have been learned, and with `unknown="refuse"` all of them.
    """
    known = set(learned)
    others = [name for name in samples.classes if name not in known]
    if others and (unknown == REFUSE or len(others) == len(samples.classes)):
        raise make_unlearned_error(others[0], learned)
    unlearned = samples.select_classes(others)
    if not others:
        return samples, unlearned
    skipped = samples.skipped
    if unknown == SKIP:
        skipped = (*skipped, describe_unlearned(unlearned.counts()))
    return replace(samples.select_classes(known), skipped=skipped), unlearned


def describe_unlearned(counts: Mapping[str, int]) -> str:
    """Return the sentence on classes that were left out, from their numbers of images.

    >>> describe_unlearned({"fox": 12})
    "class 'fox' (12 images) has not been learned; left out"
    >>> describe_unlearned({"fox": 12, "owl": 1})
    "classes 'fox', 'owl' (13 images) have not been learned; left out"
    """
    total = sum(counts.values())
    images = "1 image" if total == 1 else f"{total:,} images"
    names = join_names([f"'{name}'" for name in counts])
    subject, verb = ("class", "has") if len(counts) == 1 else ("classes", "have")
    return f"{subject} {names} ({images}) {verb} not been learned; left out"


def make_unlearned_error(name: str, learned: Sequence[str]) -> InputError:
    """Return the error on a class that has not been learned."""
    return InputError(f"class '{name}' has not been learned; this model knows: {join_names(learned)}")
