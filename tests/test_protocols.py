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
def test_every_way_of_testing_has_a_kind_of_its_own(options: Options, give_task: bool, kind: str) -> None:
    sentence = protocols.protocol(options, give_task)
    assert protocols.kind(sentence) == kind
    assert (kind in protocols.percent_title("x", sentence).lower()) == (kind != "honest")


def test_only_one_protocol_at_a_time() -> None:
    honest, released = protocols.HONEST, protocols.protocol(RELEASED)
    assert protocols.single([released, released]) == released
    with pytest.raises(InputError, match=r"different protocols \(honest, released\)"):
        protocols.single([honest, released, honest])
    with pytest.raises(InputError, match=r"\(honest, oracle\)"):
        protocols.single([honest, protocols.protocol(Options(), give_task=True)])


def test_released_programs_test_one_task_at_a_time() -> None:
    groups = [1, 0, 1, 2, 0]
    assert protocols.group_for_batches(Options(), groups, 64) == [([0, 1, 2, 3, 4], 64)]
    assert protocols.group_for_batches(RELEASED, groups, 64) == [([1, 4], 100), ([0, 2], 100), ([3], 100)]


def test_a_leaking_model_is_warned_of() -> None:
    assert protocols.warning(CAPromptOptions()) is None
    assert "'released'" in (protocols.warning(RELEASED) or "")
