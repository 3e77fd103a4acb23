from __future__ import annotations

import pytest
import torch
from helpers import quick_options, tiny_vit

from caprompt.errors import InputError
from caprompt.methods import build_method, list_methods
from caprompt.methods.base import Method
from caprompt.methods.removal import remove_class

SIZES = (2, 3, 2)


def build(name: str) -> Method:
    return build_method(name, tiny_vit(), quick_options(name))


def grow(name: str) -> Method:
    """Return a method after three tasks, its state filled with numbers that tell every entry from every other."""
    method = build(name)
    for size in SIZES:
        method.begin_task(size, torch.Generator().manual_seed(0))
    with torch.no_grad():
        for tensor in method.state().values():
            if tensor.is_floating_point():
                tensor.copy_(torch.arange(tensor.numel(), dtype=tensor.dtype).reshape(tensor.shape))
    return method


@pytest.mark.parametrize("index", [0, 3, 6])
@pytest.mark.parametrize("name", list_methods())
def test_only_entries_of_the_class_are_removed(name: str, index: int) -> None:
    method = grow(name)
    smaller = remove_class(method, index, lambda: build(name))
    task = int(method.task_of_class[index])
    assert smaller.task_sizes == [size - (number == task) for number, size in enumerate(SIZES)]
    changed = 0
    for key, tensor in method.state().items():
        rest = smaller.state()[key]
        if tensor.shape == rest.shape:
            assert torch.equal(tensor, rest)
            continue
        changed += 1
        removed = set(tensor.flatten().tolist()) - set(rest.flatten().tolist())
        assert len(removed) == tensor.numel() - rest.numel(), f"entries of '{key}' were lost or mixed up"
        (dimension,) = [d for d in range(tensor.dim()) if tensor.shape[d] != rest.shape[d]]
        first = {sum(SIZES): 0, sum(SIZES[:-1]): 0, SIZES[task]: sum(SIZES[:task])}[tensor.shape[dimension]]
        kept = [entry for entry in range(tensor.shape[dimension]) if entry != index - first]
        assert torch.equal(rest, tensor.index_select(dimension, torch.tensor(kept)))
    assert changed, "a method has entries per class"


def test_state_without_an_entry_per_class_is_refused() -> None:
    class Pairs(torch.nn.Module):
        """Entries per pair of classes, flattened, so that no single one belongs to a class."""

        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("pairs", torch.zeros(0))

    def build_with_pairs() -> Method:
        method = build("linear")
        method.extra = Pairs()
        begin_task = method.begin_task

        def begin(num_classes: int, generator: torch.Generator) -> None:
            begin_task(num_classes, generator)
            method.extra.pairs = torch.zeros(method.num_classes**2)

        method.begin_task = begin  # type: ignore[method-assign]
        return method

    method = build_with_pairs()
    method.begin_task(3, torch.Generator())
    with pytest.raises(InputError, match="'linear' cannot forget a class: 'extra.pairs' has no entry per class"):
        remove_class(method, 0, build_with_pairs)
