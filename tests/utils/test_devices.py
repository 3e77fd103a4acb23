from __future__ import annotations

import pytest
import torch

from caprompt.errors import OptionError
from caprompt.utils.devices import resolve_device


def test_available_devices() -> None:
    assert resolve_device("cpu") == torch.device("cpu")
    assert resolve_device("auto").type == ("cuda" if torch.cuda.is_available() else "cpu")


@pytest.mark.parametrize("name", ["nonsense", "cuda:99", "meta", ""])
def test_unavailable_devices(name: str) -> None:
    with pytest.raises(OptionError, match="there is no device"):
        resolve_device(name)
