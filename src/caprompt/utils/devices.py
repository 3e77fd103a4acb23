"""Where a model computes, and in what numbers."""

from __future__ import annotations

import torch
from torch import Tensor

from caprompt.errors import OptionError

__all__ = ["FP8", "has_float8", "resolve_device", "resolve_dtype", "to_device"]

FP8 = "fp8"  # the products of the blocks in 8 bits, all else in bfloat16: `fp8.py`
PRECISIONS = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16, FP8: torch.bfloat16}


def resolve_device(name: str) -> torch.device:
    """The device of this name; 'auto' is a GPU where there is one."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
        torch.zeros(1, device=device).item()
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        raise OptionError(f"there is no device '{name}' here; use cpu, cuda where there is a GPU, or auto") from error
    return device


def to_device(tensor: Tensor, device: torch.device) -> Tensor:
    """A tensor of the host on a device; a GPU fetches it in its own time, and nobody waits."""
    return tensor.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else tensor.to(device)


def has_float8(device: torch.device) -> bool:
    """Is this a GPU that computes with 8-bit floats?

    >>> has_float8(torch.device("cpu"))
    False
    """
    return device.type == "cuda" and torch.cuda.get_device_capability(device) >= (8, 9)


def resolve_dtype(name: str, device: torch.device) -> torch.dtype:
    """The numbers that a frozen backbone is held and computed in; 'auto' is bfloat16 on a GPU. What learns stays float32.

    >>> resolve_dtype("auto", torch.device("cpu")), resolve_dtype("fp16", torch.device("cpu"))
    (torch.float32, torch.float16)
    """
    if name == "auto":
        return torch.bfloat16 if device.type == "cuda" else torch.float32
    if name == FP8 and not has_float8(device):
        raise OptionError(f"precision '{FP8}' needs a GPU that multiplies 8-bit floats (compute capability 8.9 or more); take bf16")
    return PRECISIONS[name]
