from __future__ import annotations

import torch

from caprompt.methods.components.device_random import DeviceRandom, hash_words


def make_random(seed: int = 0) -> DeviceRandom:
    rng = DeviceRandom()
    rng.seed(torch.Generator().manual_seed(seed))
    return rng


def test_values_are_uniform_and_neighbors_independent() -> None:
    values = make_random().randint(5, 50_000)
    pairs = torch.bincount(5 * values[:-1] + values[1:], minlength=25)
    expected = (len(values) - 1) / 25
    assert len(pairs) == 25
    assert float(((pairs - expected) ** 2 / expected).sum()) < 60  # chi square with 24 degrees of freedom: p < 1e-4 beyond 60


def test_stream_follows_from_the_seed_and_continues_after_loading() -> None:
    one, same = make_random(), make_random()
    one.randint(10, 7)
    same.randint(10, 3)
    same.randint(10, 4)
    resumed = DeviceRandom()
    resumed.load_state_dict(one.state_dict())
    following = one.randint(1000, 20)
    assert torch.equal(following, same.randint(1000, 20))
    assert torch.equal(following, resumed.randint(1000, 20))
    assert not torch.equal(following, one.randint(1000, 20))
    assert not torch.equal(make_random().randint(1000, 20), make_random(1).randint(1000, 20))


def test_hash_has_no_collisions_between_neighboring_counters() -> None:
    """Different counters give different values, also where they wrap around at 32 bits."""
    counters = torch.arange(2**32 - 5000, 2**32 + 5000)
    assert len(hash_words(counters).unique()) == 10_000
    assert torch.equal(hash_words(counters[5000:]), hash_words(torch.arange(5000)))
    assert int(hash_words(counters).min()) >= 0
    assert int(hash_words(counters).max()) < 2**32
