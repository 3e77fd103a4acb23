"""Random numbers that are passed in, never global.

Every use of chance names itself ("task", 3, "epoch", 2), and its generator follows from the model's seed and that name alone.
So nothing about generators needs saving: a run that is stopped and resumed draws the very numbers it would have drawn.
"""

from __future__ import annotations

import hashlib

import torch

__all__ = ["derive_seed", "make_generator", "make_generator_on"]


def derive_seed(seed: int, *name: str | int) -> int:
    """A seed of 63 bits for one named use of chance.

    >>> derive_seed(0, "task", 1) == derive_seed(0, "task", 1), derive_seed(0, "task", 1) == derive_seed(0, "task", 2)
    (True, False)
    """
    text = repr((seed, *name)).encode()
    return int.from_bytes(hashlib.sha256(text).digest()[:8], "big") >> 1


def make_generator(seed: int, *name: str | int) -> torch.Generator:
    """A fresh CPU generator for one named use of chance."""
    return torch.Generator().manual_seed(derive_seed(seed, *name))


def make_generator_on(device: torch.device, chance: torch.Generator) -> torch.Generator:
    """A generator on a device that goes on where a CPU generator stands; on the CPU the generator itself."""
    if device.type == "cpu":
        return chance
    return torch.Generator(device).manual_seed(int(torch.randint(2**62, (), generator=chance)))
