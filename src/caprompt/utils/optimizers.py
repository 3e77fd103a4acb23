"""Optimisers: what learns at which rate, and their moments as named tensors for a checkpoint.

Every parameter group has a `base` rate, and a schedule multiplies it. On a GPU rates are tensors there, so that they can change
between replays of a recorded step.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Literal

import torch
from torch import Tensor, nn

__all__ = ["load_optimizer_state", "make_optimizer", "optimizer_state", "set_learning_rates"]


def make_optimizer(
    kind: Literal["adam", "adamw", "sgd"],
    groups: Iterable[tuple[list[nn.Parameter], float]],
    *,
    momentum: float = 0.9,
    weight_decay: float = 0.0,
) -> torch.optim.Optimizer:
    """An optimiser of parameters at their base rates."""
    chosen: list[dict[str, Any]] = []
    for parameters, base in groups:
        if parameters:
            on_gpu = parameters[0].is_cuda
            rate = torch.tensor(base, device=parameters[0].device) if on_gpu else base
            chosen.append({"params": parameters, "base": base, "lr": rate, "fused": on_gpu or None})
    if kind == "sgd":
        return torch.optim.SGD(chosen, momentum=momentum, weight_decay=weight_decay)
    family = torch.optim.AdamW if kind == "adamw" else torch.optim.Adam
    return family(chosen, weight_decay=weight_decay, capturable=any(group["fused"] for group in chosen))


def set_learning_rates(optimizer: torch.optim.Optimizer, factor: float) -> None:
    """Put every group's rate at this multiple of its base."""
    for group in optimizer.param_groups:
        rate = group["base"] * factor
        if isinstance(group["lr"], Tensor):
            group["lr"].fill_(rate)
        else:
            group["lr"] = rate


def optimizer_state(optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """The optimiser's moments as named tensors."""
    state = optimizer.state_dict()["state"]
    return {f"{index}.{name}": tensor for index, entry in state.items() for name, tensor in entry.items()}


def load_optimizer_state(optimizer: torch.optim.Optimizer, tensors: Mapping[str, Tensor]) -> None:
    """Take over moments that `optimizer_state` gave."""
    state: dict[int, dict[str, Tensor]] = {}
    for key, tensor in tensors.items():
        index, name = key.split(".", 1)
        state.setdefault(int(index), {})[name] = tensor
    optimizer.load_state_dict({"state": state, "param_groups": optimizer.state_dict()["param_groups"]})
