"""Optimizer construction, learning rates, and optimizer state as named tensors for a checkpoint.

Every parameter group has a `base` learning rate, which a schedule multiplies. On a GPU learning
rates are tensors, so that they can change between replays of a captured step.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from typing import Any, Literal

import torch
from torch import Tensor, nn

from caprompt.errors import InputError

__all__ = ["get_optimizer_state", "load_optimizer_state", "make_optimizer", "set_learning_rates"]


def make_optimizer(
    kind: Literal["adam", "adamw", "sgd"],
    groups: Iterable[tuple[list[nn.Parameter], float]],
    *,
    momentum: float = 0.9,
    weight_decay: float = 0.0,
) -> torch.optim.Optimizer:
    """Build an optimizer of (parameters, base learning rate) groups; empty groups are left out."""
    param_groups: list[dict[str, Any]] = []
    for parameters, base in groups:
        if parameters:
            on_gpu = parameters[0].is_cuda
            rate = torch.full((), base, device=parameters[0].device) if on_gpu else base  # without waiting for the GPU
            param_groups.append({"params": parameters, "base": base, "lr": rate, "fused": on_gpu or None})
    if kind == "sgd":
        return _without_compiler(torch.optim.SGD)(param_groups, momentum=momentum, weight_decay=weight_decay)
    optimizer_class = _without_compiler(torch.optim.AdamW if kind == "adamw" else torch.optim.Adam)
    capturable = any(group["fused"] for group in param_groups)
    return optimizer_class(param_groups, weight_decay=weight_decay, capturable=capturable)


@cache
def _without_compiler(optimizer_class: type[torch.optim.Optimizer]) -> Callable[..., torch.optim.Optimizer]:
    """Return the optimizer without its decorators for torch.compile, the first call of which imports the whole compiler.

    That takes seconds, as long as the training of a small task, and no optimizer is compiled here.
    """
    decorated = ("add_param_group", "zero_grad", "state_dict", "load_state_dict")
    methods = {name: inspect.unwrap(getattr(optimizer_class, name)) for name in decorated}
    methods["step"] = torch.no_grad()(inspect.unwrap(optimizer_class.step))
    return type(optimizer_class.__name__, (optimizer_class,), methods)


def set_learning_rates(optimizer: torch.optim.Optimizer, factor: float) -> None:
    """Set the learning rate of every group to this multiple of its base rate."""
    for group in optimizer.param_groups:
        rate = group["base"] * factor
        if isinstance(group["lr"], Tensor):
            group["lr"].fill_(rate)
        else:
            group["lr"] = rate


def get_optimizer_state(optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """Return the optimizer's moments as named tensors."""
    state = optimizer.state_dict()["state"]
    return {f"{index}.{name}": tensor for index, entry in state.items() for name, tensor in entry.items()}


def load_optimizer_state(optimizer: torch.optim.Optimizer, tensors: Mapping[str, Tensor]) -> None:
    """Load moments that `get_optimizer_state` returned; raise `InputError` if they are not those of this optimizer."""
    state: dict[int, dict[str, Tensor]] = {}
    for key, tensor in tensors.items():
        index, _, name = key.partition(".")
        state.setdefault(int(index) if index.isdecimal() else -1, {})[name] = tensor
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    if not all(0 <= index < len(parameters) and _fits(optimizer, entry, parameters[index]) for index, entry in state.items()):
        raise InputError(
            "the checkpoint of the stopped call does not fit its optimizer, so it is damaged; discard that call, and start it again"
        )
    optimizer.load_state_dict({"state": state, "param_groups": optimizer.state_dict()["param_groups"]})


def _fits(optimizer: torch.optim.Optimizer, entry: Mapping[str, Tensor], parameter: Tensor) -> bool:
    """Return whether saved moments have the names, shapes and signs of those of a parameter."""
    names = {"momentum_buffer"} if isinstance(optimizer, torch.optim.SGD) else {"step", "exp_avg", "exp_avg_sq"}
    if entry.keys() != names or any(bool((entry[name] < 0).any()) for name in names & {"step", "exp_avg_sq"}):
        return False
    return all(tensor.shape == (torch.Size() if name == "step" else parameter.shape) for name, tensor in entry.items())
