"""What the processes of one call exchange: sums, copies and small values.

A process asks for its communicator and need not know how it was started:

    communicator = get_communicator()   # `ALONE`, unless the process is one of several
    communicator.add_up(gradients)      # now the sum over all processes

The one for several processes is in `caprompt.distributed`, the only package that knows how they talk to each other.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["ALONE", "Alone", "Communicator", "choose_share", "deal_batches", "get_communicator", "use_communicator"]


class Communicator(Protocol):
    """One of `size` processes that work on the same call; every one of them must make the same calls in the same order."""

    @property
    def rank(self) -> int:
        """Number of this process, from 0."""
        ...

    @property
    def size(self) -> int:
        """Number of processes."""
        ...

    def add_up(self, tensor: Tensor) -> None:
        """Replace a tensor by its sum over all processes; all of them get the same bits."""
        ...

    def copy_from_first(self, tensor: Tensor) -> None:
        """Replace a tensor by that of process 0."""
        ...

    def gather(self, value: Any) -> list[Any]:
        """Return the values of all processes by rank; a value is what JSON can hold."""
        ...

    def wait(self) -> None:
        """Wait until all processes have come this far."""
        ...

    def claim(self, name: str) -> bool:
        """Return whether this process is the first of all to claim this; it waits for none of them."""
        ...


class Alone:
    """The only process of a call: there is nobody to exchange anything with."""

    rank = 0
    size = 1

    def add_up(self, tensor: Tensor) -> None:
        """Leave the tensor as it is."""

    def copy_from_first(self, tensor: Tensor) -> None:
        """Leave the tensor as it is."""

    def gather(self, value: Any) -> list[Any]:
        """Return the own value.

        >>> ALONE.gather("a")
        ['a']
        """
        return [value]

    def wait(self) -> None:
        """Go on."""

    def claim(self, name: str) -> bool:
        """Return true."""
        return True


ALONE: Communicator = Alone()
_current: Communicator = ALONE  # as the process has one standard output, it has one communicator


def get_communicator() -> Communicator:
    """Return the communicator of this process."""
    return _current


@contextmanager
def use_communicator(communicator: Communicator) -> Iterator[None]:
    """Make this the communicator of the process within the context."""
    global _current
    before, _current = _current, communicator
    try:
        yield
    finally:
        _current = before


def choose_share(count: int, communicator: Communicator) -> slice:
    """Return which of `count` items this process takes: every `size`-th; all of them where there are fewer than processes.

    So no process is without an item, and the mean over items, weighted by their number, is the same in both cases.

    >>> [1, 2, 3][choose_share(3, ALONE)]
    [1, 2, 3]
    """
    return slice(None) if count < communicator.size else slice(communicator.rank, None, communicator.size)


def deal_batches(groups: Sequence[tuple[list[int], int]], communicator: Communicator) -> list[tuple[list[int], int]]:
    """Return this process's share of groups of positions and their batch sizes: every `size`-th batch, whole.

    `methods.components.shared_rows` relies on this order. What an image shares a batch with does not depend on the number of
    processes.

    >>> deal_batches([([5, 6, 7], 2)], ALONE)
    [([5, 6, 7], 2)]
    """
    shares, number = [], 0
    for positions, size in groups:
        own: list[int] = []
        for start in range(0, len(positions), size):
            own += positions[start : start + size] if number % communicator.size == communicator.rank else []
            number += 1
        shares.append((own, size))
    return shares
