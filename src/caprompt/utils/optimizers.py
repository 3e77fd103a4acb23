"""Optimizer construction, learning rates, and optimizer state as named tensors for a checkpoint.

Every parameter group has a `base` learning rate, which a schedule multiplies. On a GPU learning
rates are tensors, so that they can change between replays of a captured step.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Literal

import torch
from torch import Tensor, nn

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
            rate = torch.tensor(base, device=parameters[0].device) if on_gpu else base
            param_groups.append({"params": parameters, "base": base, "lr": rate, "fused": on_gpu or None})
    if kind == "sgd":
        return torch.optim.SGD(param_groups, momentum=momentum, weight_decay=weight_decay)
    optimizer_class = torch.optim.AdamW if kind == "adamw" else torch.optim.Adam
    capturable = any(group["fused"] for group in param_groups)
    return optimizer_class(param_groups, weight_decay=weight_decay, capturable=capturable)


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
    """Load moments that `get_optimizer_state` returned."""
    state: dict[int, dict[str, Tensor]] = {}
    for key, tensor in tensors.items():
        index, name = key.split(".", 1)
        state.setdefault(int(index), {})[name] = tensor
    optimizer.load_state_dict({"state": state, "param_groups": optimizer.state_dict()["param_groups"]})
