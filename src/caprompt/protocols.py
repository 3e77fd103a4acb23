"""Evaluation protocols: the conditions under which a result was measured.

Every result carries its protocol, and results of different protocols are never compared or averaged.
A protocol is a sentence that starts with its kind and a colon; only the kind is compared, so the rest may be reworded.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from caprompt.errors import InputError

if TYPE_CHECKING:
    from caprompt.methods.options import Options

__all__ = [
    "HONEST",
    "describe_protocol",
    "format_percent_title",
    "group_for_batches",
    "is_released",
    "make_leak_warning",
    "parse_kind",
    "require_same_protocol",
]

HONEST = (
    "honest: a prediction depends on its own image only, not on the rest of the batch; "
    "no task identity at test time; no stored images"
)
ORACLE = "the true task of each test image is given; an upper bound for the prompts, not the accuracy that a user would get"
LEAK = (
    "as in the authors' code, an image gets prompts of its neighbors in the batch, in training and at test time, "
    "and a test batch holds one task, so that task identity leaks; only for comparison with published tables"
)
JOINT = "joint: all classes are learned at once, an upper bound for any order of tasks; a prediction depends on its own image only"
RELEASED_BATCH_SIZE = 100  # images of one task, or of one class, per batch under protocol=released


def is_released(options: Options) -> bool:
    """Return whether these options reproduce the batch leak of the authors' released code."""
    return getattr(options, "protocol", "honest") == "released"


def describe_protocol(options: Options, give_task: bool = False, joint: bool = False) -> str:
    """Return the protocol of results measured with these options."""
    if joint:
        return f"released joint: {LEAK}; all classes are learned at once" if is_released(options) else JOINT
    sentences = {
        (False, False): HONEST,
        (False, True): f"oracle: {ORACLE}",
        (True, False): f"released: {LEAK}",
        (True, True): f"released oracle: {LEAK}; {ORACLE}",
    }
    return sentences[is_released(options), give_task]


def parse_kind(protocol: str) -> str:
    """Return the kind of a protocol, the part before the colon.

    >>> parse_kind(HONEST)
    'honest'
    """
    return protocol.partition(":")[0]


def require_same_protocol(protocols: Iterable[str]) -> str:
    """Return the protocol that several results share; raise if their kinds differ.

    >>> require_same_protocol([HONEST, "released: leaks"])
    Traceback (most recent call last):
    caprompt.errors.InputError: results of different protocols (honest, released) are not comparable; ...
    """
    by_kind = {parse_kind(protocol): protocol for protocol in protocols}
    if len(by_kind) > 1:
        kinds = ", ".join(sorted(by_kind))
        raise InputError(f"results of different protocols ({kinds}) are not comparable; compare only runs of the same protocol")
    return next(iter(by_kind.values()))


def format_percent_title(what: str, protocol: str = HONEST) -> str:
    """Return the title of a table or plot of percentages, marked unless the protocol is honest.

    >>> format_percent_title("accuracy"), format_percent_title("accuracy", "released: leaks")
    ('accuracy, in percent', 'accuracy, in percent (not comparable: protocol=released)')
    """
    kind = parse_kind(protocol)
    return f"{what}, in percent" + ("" if kind == "honest" else f" (not comparable: protocol={kind})")


def make_leak_warning(options: Options) -> str | None:
    """Return the warning that goes with every prediction of a model with the batch leak."""
    if not is_released(options):
        return None
    return "this model was trained with protocol=released: its predictions depend on the other images of a batch; not for use"


def group_for_batches(options: Options, groups: Sequence[int], batch_size: int) -> list[tuple[list[int], int]]:
    """Return which un-augmented images share batches, as (positions, batch size) pairs.

    `groups` holds a group number per image. With an honest protocol, images are batched in their order. The released code tests
    one task after another, and computes statistics of one class after another, so that no batch holds two groups.
    """
    if not is_released(options):
        return [(list(range(len(groups))), batch_size)]
    return [([i for i, own in enumerate(groups) if own == group], RELEASED_BATCH_SIZE) for group in sorted(set(groups))]
