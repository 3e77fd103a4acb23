"""A sample of every kind of attack: nothing may crash, hang, take gigabytes or lose a model. `make robust` runs all of it."""

from __future__ import annotations

import os
import sys

import pytest

from robust.registry import NAMES, get_attack
from robust.supervisor import run_attack

SEED = 20261116


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="memory and forks are watched as on Linux")
@pytest.mark.parametrize("name", NAMES)
def test_sample_of_an_attack(name: str) -> None:
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    tally = run_attack(name, SEED, get_attack(name).sample, cases=None)
    failures = [f"{each['number']}: {each['outcome']}: {each['description']}\n{each['message']}" for each in tally.failures]
    command = f"PYTHONPATH=tests python -m robust --kind {name} --seed {SEED} --only NUMBER"
    assert not failures, "\n\n".join([f"{len(failures)} tries failed; repeat one with `{command}`", *failures])
    assert tally.tries == get_attack(name).sample
    assert tally.counts["refused"] + tally.counts["accepted"] == tally.tries
    assert tally.counts["accepted"], "damage that is always refused at the door tests nothing behind it"
