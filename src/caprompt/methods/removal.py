"""Removal of a class from the learned state of any method: its rows are found by comparing shapes.

Growing a method to T tasks determines the shapes of its state. The tensors whose shape changes when the task of a class has one
class less are those with an entry per class: of all classes, or of the classes of that task. That entry is removed; everything
else stays bit for bit.

Shapes: C classes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from caprompt.errors import InputError
from caprompt.methods.base import Method

__all__ = ["remove_class"]


def remove_class(method: Method, index: int, build: Callable[[], Method]) -> Method:
    """Return a new method without the class at an index; `build` makes an empty one on the same backbone.

    A task whose last class is removed stays, without classes, so that the other tasks keep their numbers.
    """
    sizes = list(method.task_sizes)
    task = int(method.task_of_class[index])
    first = sum(sizes[:task])
    smaller = [size - (number == task) for number, size in enumerate(sizes)]
    before, after = _get_shapes(build(), sizes), _get_shapes(build(), smaller)
    state = {}
    for name, tensor in method.state().items():
        if len(before[name]) != len(after[name]):
            raise _make_refusal(method, name)
        for dimension, (old, new) in enumerate(zip(before[name], after[name], strict=True)):
            if old == new:
                continue
            # The entries are those of the classes of this task, of all classes, or of the classes before the newest task.
            earlier = {} if task == len(sizes) - 1 else {sum(sizes[:-1]): index}
            position = {sizes[task]: index - first, sum(sizes): index, **earlier}.get(tensor.shape[dimension])
            if new != old - 1 or tensor.shape[dimension] != old or position is None:
                raise _make_refusal(method, name)
            tensor = _delete(tensor, dimension, position)
        state[name] = tensor
    smaller_method = build()
    smaller_method.restore(smaller, state)
    return smaller_method


def _get_shapes(method: Method, sizes: Sequence[int]) -> dict[str, torch.Size]:
    """Return the shapes of the state of a new method after tasks of these sizes."""
    for size in sizes:
        method.begin_task(size, torch.Generator())
    return {name: tensor.shape for name, tensor in method.state().items()}


def _delete(tensor: Tensor, dimension: int, position: int) -> Tensor:
    """Return a tensor without one entry of a dimension.

    >>> _delete(torch.arange(6).reshape(2, 3), 1, 1).tolist()
    [[0, 2], [3, 5]]
    """
    rest = [entry for entry in range(tensor.shape[dimension]) if entry != position]
    return tensor.index_select(dimension, torch.tensor(rest, dtype=torch.long, device=tensor.device))


def _make_refusal(method: Method, name: str) -> InputError:
    return InputError(f"a model of the method '{method.name}' cannot forget a class: '{name}' has no entry per class to remove")
