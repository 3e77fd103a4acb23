from __future__ import annotations

import pytest
import torch

from caprompt.errors import OptionError
from caprompt.utils import devices
from caprompt.utils.devices import allocate_upload, has_triton, resolve_device, to_device


def test_available_devices() -> None:
    assert resolve_device("cpu") == torch.device("cpu")
    assert resolve_device("auto").type == ("cuda" if torch.cuda.is_available() else "cpu")


@pytest.mark.parametrize("name", ["nonsense", "cuda:99", "meta", ""])
def test_unavailable_devices(name: str) -> None:
    with pytest.raises(OptionError, match="there is no device"):
        resolve_device(name)


def test_memory_for_uploads_is_pinned_where_there_is_a_gpu() -> None:
    assert not allocate_upload((2, 3), torch.device("cpu")).is_pinned()
    assert allocate_upload((2, 3), torch.device("cpu")).dtype == torch.uint8


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_uploads_are_not_overwritten_by_later_ones() -> None:
    """Each buffer is deleted while the copy from it may still run; PyTorch must not hand it out again before."""
    device, uploads = torch.device("cuda"), []
    for value in range(50):
        buffer = allocate_upload((1 << 22,), device)
        assert buffer.is_pinned()
        uploads.append(to_device(buffer.fill_(value), device))
    assert [int(upload.min()) for upload in uploads] == [int(upload.max()) for upload in uploads] == list(range(50))


@pytest.mark.parametrize(("installed", "compiler", "expected"), [(True, True, True), (True, False, False), (False, True, False)])
def test_kernels_need_triton_and_a_compiler(
    installed: bool, compiler: bool, expected: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Images with PyTorch for a GPU often have no C compiler."""
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.setattr(devices, "find_spec", lambda name: object() if installed else None)
    monkeypatch.setattr(devices.shutil, "which", lambda name: "/usr/bin/gcc" if compiler and name == "gcc" else None)
    devices._can_launch_kernels.cache_clear()
    try:
        assert has_triton(torch.device("cuda")) == expected
        assert not has_triton(torch.device("cpu"))
    finally:
        devices._can_launch_kernels.cache_clear()
