from __future__ import annotations

import pytest
import torch
from helpers import TINY

from caprompt.errors import OptionError
from caprompt.methods.components.prefix import Prefix, PrefixOptions, draw_prompt, resolve_layers


def test_rows_are_used_at_their_layers() -> None:
    rows = torch.randn(2, 2, 3, 4, TINY.width)  # layers 1 and 4, keys and values, 3 images, 4 rows
    prefix = Prefix(rows, (1, 4))
    keys_values = prefix.prefix(4, torch.zeros(3, 17, TINY.width))
    assert keys_values is not None
    assert torch.equal(keys_values[0], rows[1, 0])
    assert torch.equal(keys_values[1], rows[1, 1])
    assert prefix.prefix(2, torch.zeros(3, 17, TINY.width)) is None


def test_a_shared_prompt_is_the_same_for_every_image() -> None:
    prompt = torch.randn(1, 2, 4, TINY.width)
    keys_values = Prefix.shared(prompt, (0,), batch=5).prefix(0, torch.zeros(5, 17, TINY.width))
    assert keys_values is not None
    assert keys_values[0].shape == (5, 4, TINY.width)
    assert all(torch.equal(keys_values[1][row], prompt[0, 1]) for row in range(5))


def test_layers_as_list_range_number_or_all() -> None:
    assert resolve_layers(TINY, PrefixOptions()) == (0, 1)
    assert resolve_layers(TINY, PrefixOptions(layers=[1, 0, 1])) == (0, 1)  # type: ignore[arg-type]
    assert resolve_layers(TINY, PrefixOptions(layers=1)) == (1,)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="at least 1 item"):
        PrefixOptions(layers=[])  # type: ignore[arg-type]
    with pytest.raises(OptionError, match="names layer 2"):
        resolve_layers(TINY, PrefixOptions(layers="0-2"))  # type: ignore[arg-type]


def test_length_counts_keys_and_values_together() -> None:
    assert draw_prompt(TINY, PrefixOptions(length=10, layers=(1,)), torch.Generator()).shape == (1, 2, 5, TINY.width)
    with pytest.raises(ValueError, match="multiple of 2"):
        PrefixOptions(length=5)


def test_first_n_layers_are_limited_by_the_depth() -> None:
    assert resolve_layers(TINY, PrefixOptions(layers="first-1")) == (0,)
    assert resolve_layers(TINY, PrefixOptions(layers="first-5")) == (0, 1)
    for invalid in ("first-0", "first", "last-2"):
        with pytest.raises(ValueError, match="layers"):
            PrefixOptions(layers=invalid)
