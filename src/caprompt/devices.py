"""Where a model computes."""

from __future__ import annotations

import torch

from caprompt.errors import OptionError

__all__ = ["find_device"]


def find_device(name: str) -> torch.device:
    """The device of this name; 'auto' is a GPU where there is one."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
        torch.zeros(1, device=device).item()
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        raise OptionError(f"there is no device '{name}' here; use cpu, cuda where there is a GPU, or auto") from error
    return device
