"""Random integers inside a training step.

A captured step must not synchronize with the host, and a resumed call must continue the random
stream where it stopped. So the values are hashed from a counter that starts at a random seed and is
saved with the model; they are the same on every device.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

__all__ = ["DeviceRandom"]

_MASK = 0xFFFFFFFF  # the lower 32 bits


class DeviceRandom(nn.Module):
    """A counter-based random generator whose state is a buffer; seeded again for every task."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("counter", torch.zeros((), dtype=torch.long))

    counter: Tensor

    def seed(self, generator: torch.Generator) -> None:
        """Set the counter to a random value from `generator`."""
        self.counter.copy_(torch.randint(_MASK, (), generator=generator))

    def randint(self, high: int, count: int) -> Tensor:
        """Draw uniform integers from 0 to `high` - 1: (count,)."""
        counters = self.counter + torch.arange(count, device=self.counter.device)
        self.counter += count
        return (hash_words(counters) * high) >> 32


def hash_words(counters: Tensor) -> Tensor:
    """Hash each integer to 32 bits; multiplications and shifts spread every bit over the others."""
    x = counters & _MASK
    for _ in range(2):
        x = ((x ^ (x >> 16)) * 0x45D9F3B) & _MASK
    return x ^ (x >> 16)
