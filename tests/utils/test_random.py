from __future__ import annotations

import torch

from caprompt.utils.random import derive_seed, make_generator


def test_every_name_has_its_own_stream() -> None:
    names = [(0, "a"), (0, "b"), (1, "a"), (0, "a", 0), (0, "a", 1)]
    draws = {tuple(torch.randn(3, generator=make_generator(*name)).tolist()) for name in names}
    assert len(draws) == len(names)


def test_streams_are_the_same_on_every_machine() -> None:
    assert derive_seed(0, "task", 1) == 4757332655181960182
    assert torch.equal(torch.randn(5, generator=make_generator(3, "x")), torch.randn(5, generator=make_generator(3, "x")))


def test_global_generator_is_not_used() -> None:
    torch.manual_seed(1)
    before = torch.random.get_rng_state()
    torch.randn(5, generator=make_generator(0, "x"))
    assert torch.equal(before, torch.random.get_rng_state())
