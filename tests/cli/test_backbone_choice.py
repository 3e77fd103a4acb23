from __future__ import annotations

import fcntl
import os
import pty
import select
import struct
import sys
import termios
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from backbones.published import DEIT, use_closed_port
from export.local_hub import LocalHub

from caprompt.backbones import registry
from caprompt.backbones.registry import MODELS, find_file, find_local_file
from caprompt.backbones.weights import DEFAULT_BACKBONE
from caprompt.cli.backbone_choice import choose_backbone, download_backbone, require_local_backbone
from caprompt.errors import InputError, OptionError, UnknownNameError

PROPOSAL = f"{DEIT} (23 MB, Apache-2.0)"
GAIN = "45.3 % instead of 22.7 % right (Stanford Cars, 98 classes, JPEG copies"


@contextmanager
def open_terminal(monkeypatch: pytest.MonkeyPatch, typed: bytes) -> Iterator[list[str]]:
    """Let stdin and stderr be a terminal on which something was typed; the list gets what it shows in the end."""
    controller, terminal = pty.openpty()
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 200, 0, 0))  # rows, columns
    os.write(controller, typed)
    shown: list[str] = []
    with open(terminal, closefd=False) as stdin, open(terminal, "w", closefd=False) as stderr, monkeypatch.context() as patch:
        patch.setattr(sys, "stdin", stdin)
        patch.setattr(sys, "stderr", stderr)
        yield shown
    text = b""
    while select.select([controller], [], [], 0.05)[0]:
        text += os.read(controller, 100_000)
    shown.append(text.decode().replace("\r\n", "\n"))
    os.close(terminal)
    os.close(controller)


def forbid_network(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse() -> bool:
        raise AssertionError("the network was used")

    monkeypatch.setattr(registry, "is_hub_reachable", refuse)


@pytest.mark.parametrize("typed", [b"\n", b"y\n", b"Yes\n"])
def test_terminal_is_asked_and_consent_downloads(backbone_hub: LocalHub, monkeypatch: pytest.MonkeyPatch, typed: bytes) -> None:
    with open_terminal(monkeypatch, typed) as shown:
        assert choose_backbone("cpu", yes=False, offline=False) == DEIT
    assert f"Backbone: {PROPOSAL} is better than the embedded one, which is for demos: {GAIN}" in shown[0]
    assert "Download 23 MB? [Y/n] " in shown[0]
    assert "model.safetensors: 100%" in shown[0]  # a progress bar
    assert backbone_hub.downloads == [f"timm/{DEIT}/model.safetensors"]


@pytest.mark.parametrize("typed", [b"n\n", b"what?\n", b"\x04"])
def test_terminal_is_asked_and_nothing_is_downloaded_without_consent(
    backbone_hub: LocalHub, monkeypatch: pytest.MonkeyPatch, typed: bytes
) -> None:
    with open_terminal(monkeypatch, typed) as shown:
        assert choose_backbone("cpu", yes=False, offline=False) == DEFAULT_BACKBONE
    assert "Download 23 MB? [Y/n] " in shown[0]
    assert f"Backbone: {DEFAULT_BACKBONE}\n" in shown[0]
    assert backbone_hub.downloads == []


def test_not_on_a_terminal_the_network_is_not_used(
    backbone_hub: LocalHub, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    forbid_network(monkeypatch)
    assert choose_backbone("cpu", yes=False, offline=False) == DEFAULT_BACKBONE
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.startswith(f"Backbone: {DEFAULT_BACKBONE}, which is for demos; better: {PROPOSAL}, {GAIN}")
    assert printed.err.endswith(f"get it with 'caprompt backbones --download {DEIT}', or with --yes\n")
    assert printed.err.count("\n") == 1
    assert backbone_hub.downloads == []


def test_offline_the_network_is_not_used_on_a_terminal(backbone_hub: LocalHub, monkeypatch: pytest.MonkeyPatch) -> None:
    forbid_network(monkeypatch)
    with open_terminal(monkeypatch, b"y\n") as shown:
        assert choose_backbone("cpu", yes=False, offline=True) == DEFAULT_BACKBONE
    assert f"get it with 'caprompt backbones --download {DEIT}'\n" in shown[0]
    assert "[Y/n]" not in shown[0]


def test_yes_downloads_without_asking(backbone_hub: LocalHub, capsys: pytest.CaptureFixture[str]) -> None:
    assert choose_backbone("cpu", yes=True, offline=False) == DEIT
    assert backbone_hub.downloads == [f"timm/{DEIT}/model.safetensors"]
    assert f"Backbone: {PROPOSAL}\n" in capsys.readouterr().err
    with pytest.raises(OptionError, match="--yes downloads a better backbone and --offline forbids it"):
        choose_backbone("cpu", yes=True, offline=True)


def test_cached_backbone_is_chosen_offline(
    backbone_hub: LocalHub, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    find_file(MODELS[DEIT])
    capsys.readouterr()
    forbid_network(monkeypatch)
    for yes, offline in ((False, False), (False, True), (True, False)):
        assert choose_backbone("cpu", yes=yes, offline=offline) == DEIT
        assert capsys.readouterr().err == f"Backbone: {DEIT}, the best one for this machine\n"


def test_file_of_the_user_is_chosen(backbone_hub: LocalHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CAPROMPT_BACKBONES", str(tmp_path))
    (tmp_path / f"{DEIT}.safetensors").write_bytes(find_file(MODELS[DEIT]).read_bytes())
    use_closed_port(tmp_path, monkeypatch)  # with an empty cache
    assert find_local_file(MODELS[DEIT]) == tmp_path / f"{DEIT}.safetensors"
    assert choose_backbone("cpu", yes=False, offline=False) == DEIT


def test_without_a_network_the_best_one_here_is_used_and_nothing_is_written(
    backbone_hub: LocalHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    use_closed_port(tmp_path, monkeypatch)
    assert choose_backbone("cpu", yes=True, offline=False) == DEFAULT_BACKBONE
    printed = capsys.readouterr().err
    assert f"better: {PROPOSAL}, {GAIN}" in printed
    assert printed.endswith("; the hub cannot be reached now\n")
    with open_terminal(monkeypatch, b"y\n") as shown:
        assert choose_backbone("cpu", yes=False, offline=False) == DEFAULT_BACKBONE
    assert "[Y/n]" not in shown[0]
    assert list(tmp_path.iterdir()) == []


def test_download_by_name_and_backbones_that_must_be_here(backbone_hub: LocalHub) -> None:
    with pytest.raises(InputError, match=f"'{DEIT}' are not on this machine, and --offline forbids their download"):
        require_local_backbone(DEIT)
    with pytest.raises(UnknownNameError, match="unknown backbone 'resnet50'"):
        download_backbone("resnet50")
    assert backbone_hub.downloads == []
    assert download_backbone(DEIT) == find_local_file(MODELS[DEIT])
    require_local_backbone(DEIT)
    require_local_backbone("weights/mine.safetensors")
    assert download_backbone(DEFAULT_BACKBONE).parent.name == "backbones"
