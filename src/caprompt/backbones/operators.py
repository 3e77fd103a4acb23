"""Operators of this package: functions that torch.compile calls as they are, and that a dispatch mode can replace.

`torch.library.custom_op` would do the same with less to write, but the first call of such an operator imports the whole compiler,
which takes seconds, also where nothing is compiled.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

__all__ = ["define_operator"]

_library = torch.library.Library("caprompt", "DEF")


def define_operator(schema: str, compute: Callable[..., Tensor], describe: Callable[..., Tensor]) -> None:
    """Define `torch.ops.caprompt.NAME`, without gradients, by its schema; `describe` returns an empty result."""
    name = _library.define(schema)
    _library.impl(name, compute, "CompositeExplicitAutograd")
    torch.library.register_fake(f"caprompt::{name}", describe, lib=_library)
