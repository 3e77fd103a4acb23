from __future__ import annotations

import pytest

from caprompt import InputError, protocols
from caprompt.methods.caprompt import CAPromptOptions
from caprompt.methods.options import Options

RELEASED = CAPromptOptions(protocol="released", classifier="aligned")


@pytest.mark.parametrize(
    ("options", "give_task", "kind"),
    [
        (Options(), False, "honest"),
        (CAPromptOptions(), True, "oracle"),
        (RELEASED, False, "released"),
        (RELEASED, True, "released oracle"),
    ],
)
def test_every_combination_of_options_has_its_own_kind(options: Options, give_task: bool, kind: str) -> None:
    sentence = protocols.describe_protocol(options, give_task)
    assert protocols.parse_kind(sentence) == kind
    assert (kind in protocols.format_percent_title("x", sentence).lower()) == (kind != "honest")


def test_results_of_different_protocols_are_rejected() -> None:
    honest, released = protocols.HONEST, protocols.describe_protocol(RELEASED)
    assert protocols.require_same_protocol([released, released]) == released
    with pytest.raises(InputError, match=r"different protocols \(honest, released\)"):
        protocols.require_same_protocol([honest, released, honest])
    with pytest.raises(InputError, match=r"\(honest, oracle\)"):
        protocols.require_same_protocol([honest, protocols.describe_protocol(Options(), give_task=True)])


def test_released_protocol_batches_one_group_at_a_time() -> None:
    groups = [1, 0, 1, 2, 0]
    assert protocols.group_for_batches(Options(), groups, 64) == [([0, 1, 2, 3, 4], 64)]
    assert protocols.group_for_batches(RELEASED, groups, 64) == [([1, 4], 100), ([0, 2], 100), ([3], 100)]


def test_leak_warning() -> None:
    assert protocols.make_leak_warning(CAPromptOptions()) is None
    assert "protocol=released" in (protocols.make_leak_warning(RELEASED) or "")
