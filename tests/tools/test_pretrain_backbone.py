from __future__ import annotations

import re
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from helpers import ROOT, tiny_vit, write_backbone, write_squares

from caprompt.backbones import ViTConfig, load_backbone
from caprompt.utils.files import compute_sha256

COLORS = ["red", "green", "blue"]
SMALL = ["--size=16", "--patch=4", "--width=16", "--depth=1", "--heads=2", "--batch-size=6", "--lr=3e-3", "--device=cpu"]


@pytest.fixture
def pretrain(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(ROOT / "tools"))
    for name in ("ncm", "pretrain_backbone"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    import pretrain_backbone

    return pretrain_backbone


@pytest.fixture
def images(tmp_path: Path) -> Path:
    write_squares(tmp_path / "images" / "train", COLORS, each=6)
    write_squares(tmp_path / "images" / "test", COLORS, each=3, start=100)
    return tmp_path / "images"


def parse_losses(printed: str, name: str) -> list[float]:
    return [float(value) for value in re.findall(rf"epoch .*\b{name} ([\d.]+)", printed)]


@pytest.mark.parametrize(
    ("mode", "names"),
    [("supervised", ["labels"]), ("distil", ["class", "patches"]), ("both", ["class", "patches", "labels"])],
)
def test_every_mode_reduces_its_losses_and_writes_a_backbone(
    pretrain: ModuleType,
    images: Path,
    backbone: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    mode: str,
    names: list[str],
) -> None:
    out = tmp_path / "mine.safetensors"
    pretrain.main(
        [*SMALL, f"--images={images}", f"--teacher={backbone}", f"--mode={mode}", f"--out={out}", "--epochs=12", "--mix=0"]
    )
    printed = capsys.readouterr().out
    for name in names:
        values = parse_losses(printed, name)
        assert len(values) == 12
        assert sum(values[-3:]) < sum(values[:3])
    assert "nearest class mean on 9 test images" in printed.splitlines()[-1]
    loaded = load_backbone(out)
    assert loaded.config == ViTConfig(image_size=16, patch_size=4, width=16, depth=1, heads=2, mlp_width=64)
    assert loaded.build()(torch.randn(2, 3, 16, 16)).shape == (2, 16)
    assert sorted(path.name for path in tmp_path.iterdir() if path.is_file()) == ["mine.safetensors"]


def test_no_projection_for_a_teacher_of_the_same_width(pretrain: ModuleType, tmp_path: Path) -> None:
    wide = write_backbone(tmp_path / "wide.safetensors", tiny_vit(config=ViTConfig(32, 4, 16, 1, 2, 32)))
    config = ViTConfig(16, 4, 16, 1, 2, 64)
    teacher = pretrain.Teacher(wide, config, torch.randint(0, 255, (5, 3, 16, 16)))
    student = pretrain.Student(tiny_vit(config=config), 3, teacher)
    assert isinstance(student.project, torch.nn.Identity)
    assert teacher(torch.rand(2, 3, 16, 16)).shape == (2, 17, 16)


def test_resumed_training_gives_the_same_weights(
    pretrain: ModuleType, images: Path, backbone: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = [*SMALL, f"--images={images}", f"--teacher={backbone}", "--epochs=5", "--every=2"]
    pretrain.main([*options, f"--out={tmp_path / 'whole.safetensors'}"])

    run_epoch = pretrain.run_epoch

    def interrupt(args: Any, epoch: int, *rest: Any) -> Any:
        if epoch == 3:
            raise KeyboardInterrupt
        return run_epoch(args, epoch, *rest)

    monkeypatch.setattr(pretrain, "run_epoch", interrupt)
    interrupted = tmp_path / "interrupted.safetensors"
    with pytest.raises(KeyboardInterrupt):
        pretrain.main([*options, f"--out={interrupted}"])
    assert not interrupted.exists()

    epochs: list[int] = []
    monkeypatch.setattr(pretrain, "run_epoch", lambda args, epoch, *rest: epochs.append(epoch) or run_epoch(args, epoch, *rest))
    pretrain.main([*options, f"--out={interrupted}", "--resume"])
    assert epochs == [2, 3, 4]
    assert compute_sha256(interrupted) == compute_sha256(tmp_path / "whole.safetensors")


def test_checkpoint_of_another_network_is_rejected(pretrain: ModuleType, images: Path, tmp_path: Path) -> None:
    options = [*SMALL, f"--images={images}", f"--out={tmp_path / 'mine.safetensors'}", "--epochs=2", "--every=1"]
    pretrain.main(options)
    with pytest.raises(pretrain.InputError, match="other options"):
        pretrain.main([*options, "--width=32", "--resume"])


def test_mix_returns_the_share_of_each_image(pretrain: ModuleType) -> None:
    black_and_white = torch.cat([torch.zeros(32, 3, 16, 16), torch.ones(32, 3, 16, 16)])
    mixed, share = pretrain.mix(black_and_white, 1.0, torch.Generator().manual_seed(0))
    assert torch.allclose(mixed[32:].mean(dim=(1, 2, 3)), share[32:], atol=1e-5)
    unchanged, share = pretrain.mix(black_and_white, 0.0, torch.Generator().manual_seed(0))
    assert torch.equal(unchanged, black_and_white)
    assert bool((share == 1).all())


def test_matrix_of_the_teacher_is_bicubic_resizing(pretrain: ModuleType, backbone: Path) -> None:
    images = torch.rand(2, 3, 8, 8)
    teacher = pretrain.Teacher(backbone, ViTConfig(8, 4, 16, 1, 2, 64), torch.randint(0, 255, (5, 3, 8, 8)))
    expected = torch.nn.functional.interpolate(images, (16, 16), mode="bicubic", antialias=True)
    assert torch.allclose(teacher.enlarge @ images @ teacher.enlarge.T, expected, atol=1e-5)
