"""Random numbers inside a training step.

A step must not wait for the device, and a stopped call that goes on must draw what it would have drawn. So the numbers are hashed
from a seed and a counter that are saved with the model; they are the same on every device.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

__all__ = ["DeviceRandom"]

WORD = 0xFFFFFFFF  # 32 bits


class DeviceRandom(nn.Module):
    """A counter whose hash is drawn from. Seeded anew for every task."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("counter", torch.zeros((), dtype=torch.long))

    counter: Tensor

    def seed(self, generator: torch.Generator) -> None:
        """Start anew, where this generator says."""
        self.counter.copy_(torch.randint(WORD, (), generator=generator))

    def below(self, bound: int, count: int) -> Tensor:
        """Whole numbers from 0 to `bound` - 1, all equally likely: (count,)."""
        numbers = self.counter + torch.arange(count, device=self.counter.device)
        self.counter += count
        return (hash_words(numbers) * bound) >> 32


def hash_words(numbers: Tensor) -> Tensor:
    """32 well mixed bits of each number: multiplications and shifts that spread every bit over all others."""
    x = numbers & WORD
    for _ in range(2):
        x = ((x ^ (x >> 16)) * 0x45D9F3B) & WORD
    return x ^ (x >> 16)
