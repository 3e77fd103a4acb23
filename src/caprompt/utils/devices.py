"""Selection of the device and of the dtype that a backbone computes in."""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from functools import cache
from importlib.util import find_spec

import torch
from torch import Tensor

from caprompt.errors import OptionError

__all__ = ["FP8", "allocate_upload", "has_float8", "has_triton", "resolve_device", "resolve_dtype", "to_device"]

FP8 = "fp8"  # matmuls of the blocks in float8, all else in bfloat16: `backbones/fp8.py`
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16, FP8: torch.bfloat16}


def resolve_device(name: str) -> torch.device:
    """Return the device of this name; 'auto' is a GPU if there is one."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
        torch.zeros(1, device=device).item()
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        raise OptionError(f"there is no device '{name}' here; use cpu, cuda if there is a GPU, or auto") from error
    return device


def to_device(tensor: Tensor, device: torch.device) -> Tensor:
    """Copy a tensor from host memory to a device; copies to a GPU are asynchronous."""
    return tensor.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else tensor.to(device)


def allocate_upload(shape: Sequence[int], device: torch.device) -> Tensor:
    """Allocate host memory for bytes that are filled in and then passed to `to_device`: uint8, not initialized.

    For a GPU it is pinned, and comes from PyTorch's cache of pinned memory, which reuses a tensor that was deleted only after
    the copies from it have ended. So a buffer need not be kept until its upload is over.

    >>> allocate_upload((2, 3), torch.device("cpu")).shape
    torch.Size([2, 3])
    """
    return torch.empty(tuple(shape), dtype=torch.uint8, pin_memory=device.type == "cuda")


def has_float8(device: torch.device) -> bool:
    """Return whether the device is a GPU with float8 matmuls.

    >>> has_float8(torch.device("cpu"))
    False
    """
    return device.type == "cuda" and torch.cuda.get_device_capability(device) >= (8, 9)


def has_triton(device: torch.device) -> bool:
    """Return whether the kernels of this package that are written in Triton can run on the device.

    >>> has_triton(torch.device("cpu"))
    False
    """
    return device.type == "cuda" and _can_launch_kernels()


@cache
def _can_launch_kernels() -> bool:
    """Return whether Triton is installed, which PyTorch's CUDA builds for Linux bring along, and the C compiler that it needs."""
    return find_spec("triton") is not None and ("CC" in os.environ or any(map(shutil.which, ("cc", "gcc", "clang"))))


def resolve_dtype(name: str, device: torch.device) -> torch.dtype:
    """Return the dtype of a frozen backbone.

    'auto' is bfloat16 on a GPU. Trained parameters stay float32.

    >>> resolve_dtype("auto", torch.device("cpu")), resolve_dtype("fp16", torch.device("cpu"))
    (torch.float32, torch.float16)
    """
    if name == "auto":
        return torch.bfloat16 if device.type == "cuda" else torch.float32
    if name == FP8 and not has_float8(device):
        raise OptionError(f"precision '{FP8}' needs a GPU with float8 matmuls (compute capability 8.9 or higher); use bf16")
    return DTYPES[name]
