"""Under which rules a figure came about. Every result carries its protocol, and figures of different ones are never mixed.

A protocol is a sentence that begins with its kind and a colon; the kind is what figures are told apart by.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from caprompt.errors import InputError

if TYPE_CHECKING:
    from caprompt.methods.options import Options

__all__ = ["HONEST", "group_for_batches", "is_released", "kind", "percent_title", "protocol", "single", "warning"]

HONEST = "honest: an image's answer is its own, whatever else is in its batch; no task identity at test; no stored images"
GIVEN_TASK = "each test image's true task is given away; shows what the prompts can do, not what a user would get"
LEAK = (
    "as the authors' program has it, an image gets prompts of its neighbours in the batch, in training and at the test, "
    "and a test batch holds one task, so that task identity leaks; only for comparing with published tables"
)
JOINT = "joint: all classes are learned at once, an upper bound for any order of tasks; an image's answer is its own"
BATCH = 100  # images of one task, or of one class, at a time


def is_released(options: Options) -> bool:
    """Do these options repeat the leak of a released program?"""
    return getattr(options, "protocol", "honest") == "released"


def protocol(options: Options, give_task: bool = False, joint: bool = False) -> str:
    """The protocol of figures that come from a method with these options."""
    if joint:
        return f"released joint: {LEAK}; all classes are learned at once" if is_released(options) else JOINT
    kinds = {
        (False, False): HONEST,
        (False, True): f"oracle: {GIVEN_TASK}",
        (True, False): f"released: {LEAK}",
        (True, True): f"released oracle: {LEAK}; {GIVEN_TASK}",
    }
    return kinds[is_released(options), give_task]


def kind(protocol: str) -> str:
    """The word that tells protocols apart.

    >>> kind(HONEST)
    'honest'
    """
    return protocol.partition(":")[0]


def single(protocols: Iterable[str]) -> str:
    """The protocol that several results have in common; results of different ones are refused.

    >>> single([HONEST, "released: leaks"])
    Traceback (most recent call last):
    caprompt.errors.InputError: figures of different protocols (honest, released) say nothing beside each other; ...
    """
    found = {kind(each): each for each in protocols}
    if len(found) > 1:
        names = ", ".join(sorted(found))
        raise InputError(
            f"figures of different protocols ({names}) say nothing beside each other; compare only runs of the same protocol"
        )
    return next(iter(found.values()))


def percent_title(what: str, protocol: str = HONEST) -> str:
    """The title of a table or figure of percentages, marked where the protocol is not honest.

    >>> percent_title("accuracy"), percent_title("accuracy", "released: leaks")
    ('accuracy, in percent', 'accuracy, in percent (protocol RELEASED: no honest figures)')
    """
    mark = "" if kind(protocol) == "honest" else f" (protocol {kind(protocol).upper()}: no honest figures)"
    return f"{what}, in percent{mark}"


def warning(options: Options) -> str | None:
    """What to say before anything that a leaking model answers."""
    if not is_released(options):
        return None
    return "this model was trained under the protocol 'released': its answers depend on the images beside them; not for use"


def group_for_batches(options: Options, groups: Sequence[int], batch_size: int) -> list[tuple[list[int], int]]:
    """Which un-augmented images go through the network together, as (positions, batch size); `groups` has a number for each.

    Honestly, all in their order. The released programs test one task after another, and take statistics of one class after
    another, so that no batch holds two.
    """
    if not is_released(options):
        return [(list(range(len(groups))), batch_size)]
    return [([i for i, own in enumerate(groups) if own == group], BATCH) for group in sorted(set(groups))]
