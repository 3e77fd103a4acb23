from __future__ import annotations

import pytest
import torch
from helpers import TINY

from caprompt.errors import OptionError
from caprompt.methods.components.prefix import Prefix, PrefixOptions, prompted_layers, random_prompt


def test_rows_go_to_their_layers() -> None:
    rows = torch.randn(2, 2, 3, 4, TINY.width)  # layers 1 and 4, keys and values, 3 images, 4 rows
    prefix = Prefix(rows, (1, 4))
    found = prefix.prefix(4, torch.zeros(3, 17, TINY.width))
    assert found is not None
    assert torch.equal(found[0], rows[1, 0])
    assert torch.equal(found[1], rows[1, 1])
    assert prefix.prefix(2, torch.zeros(3, 17, TINY.width)) is None


def test_a_shared_prompt_is_the_same_for_every_image() -> None:
    prompt = torch.randn(1, 2, 4, TINY.width)
    found = Prefix.shared(prompt, (0,), batch=5).prefix(0, torch.zeros(5, 17, TINY.width))
    assert found is not None
    assert found[0].shape == (5, 4, TINY.width)
    assert all(torch.equal(found[1][row], prompt[0, 1]) for row in range(5))


def test_layers_by_list_range_number_or_all() -> None:
    assert prompted_layers(TINY, PrefixOptions()) == (0, 1)
    assert prompted_layers(TINY, PrefixOptions(layers=[1, 0, 1])) == (0, 1)  # type: ignore[arg-type]
    assert prompted_layers(TINY, PrefixOptions(layers=1)) == (1,)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="at least 1 item"):
        PrefixOptions(layers=[])  # type: ignore[arg-type]
    with pytest.raises(OptionError, match="names layer 2"):
        prompted_layers(TINY, PrefixOptions(layers="0-2"))  # type: ignore[arg-type]


def test_length_counts_keys_and_values_together() -> None:
    assert random_prompt(TINY, PrefixOptions(length=10, layers=(1,)), torch.Generator()).shape == (1, 2, 5, TINY.width)
    with pytest.raises(ValueError, match="multiple of 2"):
        PrefixOptions(length=5)


def test_the_first_layers_are_as_many_as_there_are() -> None:
    assert prompted_layers(TINY, PrefixOptions(layers="first-1")) == (0,)
    assert prompted_layers(TINY, PrefixOptions(layers="first-5")) == (0, 1)
    for wrong in ("first-0", "first", "last-2"):
        with pytest.raises(ValueError, match="layers"):
            PrefixOptions(layers=wrong)
