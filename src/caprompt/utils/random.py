"""Named random streams; generators are passed in, never global.

Each random stream is derived from the model's seed and a name ("task", 3, "epoch", 2), and from
nothing else. So no generator state needs to be saved: a run that is stopped and resumed draws the
same numbers as one that was not.
"""

from __future__ import annotations

import hashlib

import torch

__all__ = ["derive_seed", "make_generator", "make_generator_on"]


def derive_seed(seed: int, *name: str | int) -> int:
    """Derive a 63-bit seed for one named random stream.

    >>> derive_seed(0, "task", 1) == derive_seed(0, "task", 1), derive_seed(0, "task", 1) == derive_seed(0, "task", 2)
    (True, False)
    """
    text = repr((seed, *name)).encode()
    return int.from_bytes(hashlib.sha256(text).digest()[:8], "big") >> 1


def make_generator(seed: int, *name: str | int) -> torch.Generator:
    """Return a new CPU generator for one named random stream."""
    return torch.Generator().manual_seed(derive_seed(seed, *name))


def make_generator_on(device: torch.device, generator: torch.Generator) -> torch.Generator:
    """Return a generator on a device, seeded by a draw from a CPU generator.

    On the CPU that generator itself.
    """
    if device.type == "cpu":
        return generator
    return torch.Generator(device).manual_seed(int(torch.randint(2**62, (), generator=generator)))
