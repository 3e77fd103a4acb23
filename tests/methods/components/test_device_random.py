from __future__ import annotations

import torch

from caprompt.methods.components.device_random import DeviceRandom, hash_words


def seeded(seed: int = 0) -> DeviceRandom:
    chance = DeviceRandom()
    chance.seed(torch.Generator().manual_seed(seed))
    return chance


def test_all_numbers_are_equally_likely_and_neighbours_know_nothing_of_each_other() -> None:
    drawn = seeded().below(5, 50_000)
    pairs = torch.bincount(5 * drawn[:-1] + drawn[1:], minlength=25)
    expected = (len(drawn) - 1) / 25
    assert len(pairs) == 25
    assert float(((pairs - expected) ** 2 / expected).sum()) < 60  # chi square of 24 degrees: 60 is beyond 1 in 10,000


def test_numbers_follow_from_the_seed_and_go_on_where_a_saved_one_stopped() -> None:
    one, same = seeded(), seeded()
    one.below(10, 7)
    same.below(10, 3)
    same.below(10, 4)
    resumed = DeviceRandom()
    resumed.load_state_dict(one.state_dict())
    following = one.below(1000, 20)
    assert torch.equal(following, same.below(1000, 20))
    assert torch.equal(following, resumed.below(1000, 20))
    assert not torch.equal(following, one.below(1000, 20))
    assert not torch.equal(seeded().below(1000, 20), seeded(1).below(1000, 20))


def test_the_hash_is_one_to_one_where_counters_meet() -> None:
    """Different counters give different words, also around the end of the 32 bits, where they start anew."""
    counters = torch.arange(2**32 - 5000, 2**32 + 5000)
    assert len(hash_words(counters).unique()) == 10_000
    assert torch.equal(hash_words(counters[5000:]), hash_words(torch.arange(5000)))
    assert int(hash_words(counters).min()) >= 0
    assert int(hash_words(counters).max()) < 2**32
