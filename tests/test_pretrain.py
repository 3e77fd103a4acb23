from __future__ import annotations

import re
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from helpers import tiny_vit, write_backbone, write_squares

from caprompt.backbones.vit import ViTConfig
from caprompt.backbones.weights import DEFAULT_BACKBONE, PACKAGED, load_backbone
from caprompt.utils.files import sha256_of

TOOLS = Path(__file__).parents[1] / "tools"
COLOURS = ["red", "green", "blue"]
SMALL = ["--size=16", "--patch=4", "--width=16", "--depth=1", "--heads=2", "--batch-size=6", "--lr=3e-3", "--device=cpu"]


@pytest.fixture
def pretrain(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(TOOLS))
    for name in ("ncm", "pretrain"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    import pretrain

    return pretrain


@pytest.fixture
def ncm(pretrain: ModuleType) -> ModuleType:
    return sys.modules["ncm"]


@pytest.fixture
def images(tmp_path: Path) -> Path:
    write_squares(tmp_path / "images" / "train", COLOURS, each=6)
    write_squares(tmp_path / "images" / "test", COLOURS, each=3, start=100)
    return tmp_path / "images"


def losses(printed: str, name: str) -> list[float]:
    return [float(value) for value in re.findall(rf"epoch .*\b{name} ([\d.]+)", printed)]


@pytest.mark.parametrize(
    ("mode", "learned"),
    [("supervised", ["labels"]), ("distil", ["class", "patches"]), ("both", ["class", "patches", "labels"])],
)
def test_every_mode_learns_and_writes_a_backbone(
    pretrain: ModuleType,
    images: Path,
    backbone: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    mode: str,
    learned: list[str],
) -> None:
    out = tmp_path / "mine.safetensors"
    pretrain.main(
        [*SMALL, f"--images={images}", f"--teacher={backbone}", f"--mode={mode}", f"--out={out}", "--epochs=12", "--mix=0"]
    )
    printed = capsys.readouterr().out
    for name in learned:
        values = losses(printed, name)
        assert len(values) == 12
        assert sum(values[-3:]) < sum(values[:3])
    assert "nearest class mean on 9 test images" in printed.splitlines()[-1]
    found = load_backbone(out)
    assert found.config == ViTConfig(image_size=16, patch_size=4, width=16, depth=1, heads=2, mlp_width=64)
    assert found.build()(torch.randn(2, 3, 16, 16)).shape == (2, 16)
    assert [path.name for path in tmp_path.glob("*.part")] == []


def test_a_teacher_of_the_same_width_is_imitated_directly(pretrain: ModuleType, tmp_path: Path) -> None:
    wide = write_backbone(tmp_path / "wide.safetensors", tiny_vit(config=ViTConfig(32, 4, 16, 1, 2, 32)))
    config = ViTConfig(16, 4, 16, 1, 2, 64)
    teacher = pretrain.Teacher(wide, config, torch.randint(0, 255, (5, 3, 16, 16)))
    student = pretrain.Student(tiny_vit(config=config), 3, teacher)
    assert isinstance(student.project, torch.nn.Identity)
    assert teacher(torch.rand(2, 3, 16, 16)).shape == (2, 17, 16)


def test_an_interrupted_training_goes_on_to_the_same_weights(
    pretrain: ModuleType, images: Path, backbone: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = [*SMALL, f"--images={images}", f"--teacher={backbone}", "--epochs=5", "--every=2"]
    pretrain.main([*options, f"--out={tmp_path / 'whole.safetensors'}"])

    run_epoch = pretrain.run_epoch

    def pull_the_plug(args: Any, epoch: int, *rest: Any) -> Any:
        if epoch == 3:
            raise KeyboardInterrupt
        return run_epoch(args, epoch, *rest)

    monkeypatch.setattr(pretrain, "run_epoch", pull_the_plug)
    broken = tmp_path / "broken.safetensors"
    with pytest.raises(KeyboardInterrupt):
        pretrain.main([*options, f"--out={broken}"])
    assert not broken.exists()

    epochs: list[int] = []
    monkeypatch.setattr(pretrain, "run_epoch", lambda args, epoch, *rest: epochs.append(epoch) or run_epoch(args, epoch, *rest))
    pretrain.main([*options, f"--out={broken}", "--resume"])
    assert epochs == [2, 3, 4]
    assert sha256_of(broken) == sha256_of(tmp_path / "whole.safetensors")


def test_a_checkpoint_of_another_network_is_refused(pretrain: ModuleType, images: Path, tmp_path: Path) -> None:
    options = [*SMALL, f"--images={images}", f"--out={tmp_path / 'mine.safetensors'}", "--epochs=2", "--every=1"]
    pretrain.main(options)
    with pytest.raises(pretrain.InputError, match="other options"):
        pretrain.main([*options, "--width=32", "--resume"])


def test_mixing_keeps_the_share_it_reports(pretrain: ModuleType) -> None:
    black_and_white = torch.cat([torch.zeros(32, 3, 16, 16), torch.ones(32, 3, 16, 16)])
    mixed, share = pretrain.mix(black_and_white, 1.0, torch.Generator().manual_seed(0))
    assert torch.allclose(mixed[32:].mean(dim=(1, 2, 3)), share[32:], atol=1e-5)
    untouched, share = pretrain.mix(black_and_white, 0.0, torch.Generator().manual_seed(0))
    assert torch.equal(untouched, black_and_white)
    assert bool((share == 1).all())


def test_enlarging_by_matrix_is_bicubic_resizing(pretrain: ModuleType, backbone: Path) -> None:
    images = torch.rand(2, 3, 8, 8)
    teacher = pretrain.Teacher(backbone, ViTConfig(8, 4, 16, 1, 2, 64), torch.randint(0, 255, (5, 3, 8, 8)))
    wanted = torch.nn.functional.interpolate(images, (16, 16), mode="bicubic", antialias=True)
    assert torch.allclose(teacher.enlarge @ images @ teacher.enlarge.T, wanted, atol=1e-5)


def test_nearest_mean_on_directions(ncm: ModuleType) -> None:
    train, labels = torch.tensor([[1.0, 0.1], [9.0, 0.0], [0.0, 2.0]]), torch.tensor([0, 0, 1])
    assert ncm.nearest_mean(train, labels, torch.tensor([[0.2, 0.1], [0.3, 5.0]]), torch.tensor([0, 1])) == 100
    assert ncm.nearest_mean(train, labels, torch.tensor([[0.2, 0.1], [0.3, 5.0]]), torch.tensor([1, 1])) == 50


def test_ncm_prints_a_row_for_each_and_writes_json(
    ncm: ModuleType, images: Path, backbone: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    result = tmp_path / "results" / "ncm.json"
    ncm.main([f"--images={images}", f"--backbone={backbone}", "--random", f"--json={result}", "--device=cpu"])
    assert len(capsys.readouterr().out.splitlines()) == 3
    text = result.read_text()
    assert '"ncm_accuracy"' in text
    assert "random weights (tiny)" in text


def test_the_packaged_backbone_is_small_and_is_the_one_its_card_describes() -> None:
    path = PACKAGED / f"{DEFAULT_BACKBONE}.safetensors"
    found = load_backbone(DEFAULT_BACKBONE)
    assert path.stat().st_size <= 6_000_000
    assert found.config == ViTConfig(image_size=64, patch_size=8, width=192, depth=6, heads=3, mlp_width=768)
    assert all(bool(tensor.isfinite().all()) for tensor in found.build().state_dict().values())
    assert sha256_of(path) in (PACKAGED / "MODEL_CARD.md").read_text()
