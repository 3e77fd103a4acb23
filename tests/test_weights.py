from __future__ import annotations

from pathlib import Path

import pytest
import torch
from helpers import TINY, tiny_vit, write_backbone
from safetensors.torch import save_file

from caprompt.errors import InputError, UnknownNameError
from caprompt.vit import ViTConfig
from caprompt.weights import DEFAULT_BACKBONE, available, find_backbone, sha256_of


def test_a_file_gives_the_network_it_was_written_from(tmp_path: Path) -> None:
    vit = tiny_vit(seed=3)
    found = find_backbone(write_backbone(tmp_path / "mine.safetensors", vit))
    assert found.config == TINY
    assert found.name == "mine"
    assert found.mean == (0.5, 0.5, 0.5)
    images = torch.randn(2, 3, 16, 16)
    assert torch.equal(found.build()(images), vit(images))


def test_the_built_network_is_frozen(backbone: Path) -> None:
    vit = find_backbone(backbone).build()
    assert not vit.training
    assert not any(parameter.requires_grad for parameter in vit.parameters())


def test_timms_conventions_where_a_file_does_not_describe_itself(tmp_path: Path) -> None:
    config = ViTConfig(image_size=32, patch_size=8, width=128, depth=3, heads=2, mlp_width=256)
    vit = tiny_vit(config=config)
    head = {"head.weight": torch.zeros(10, 128), "head.bias": torch.zeros(10)}
    save_file({**vit.state_dict(), **head}, tmp_path / "plain.safetensors")
    found = find_backbone(tmp_path / "plain.safetensors")
    assert found.config == config
    assert found.std == (0.229, 0.224, 0.225)
    assert "head.weight" not in found.weights


def test_the_default_is_shipped() -> None:
    assert DEFAULT_BACKBONE in available()
    found = find_backbone(DEFAULT_BACKBONE)
    assert found.config.image_size == 64
    assert found.path.stat().st_size <= 6_000_000
    assert found.build()(torch.zeros(1, 3, 64, 64)).isfinite().all()


def test_hash_is_that_of_the_file(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"abc")
    assert sha256_of(tmp_path / "a") == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"


def test_unknown_names_are_answered_with_what_exists() -> None:
    with pytest.raises(UnknownNameError, match=DEFAULT_BACKBONE):
        find_backbone("vit_huge")
    with pytest.raises(InputError, match=r"no backbone file 'nowhere/x.safetensors'"):
        find_backbone("nowhere/x.safetensors")


@pytest.mark.parametrize("described", ['{"heads": 3}', "[]", '{"heads": 2, "mean": 5}', "{", "{}"])
def test_descriptions_that_do_not_fit_are_refused(tmp_path: Path, described: str) -> None:
    """Also no description at all: 32 channels are no head of 64."""
    save_file(tiny_vit().state_dict(), tmp_path / "odd.safetensors", metadata={"caprompt": described})
    with pytest.raises(InputError, match="does not hold a plain ViT"):
        find_backbone(tmp_path / "odd.safetensors")


def test_files_that_are_no_plain_vit_are_refused(tmp_path: Path) -> None:
    (tmp_path / "broken.safetensors").write_bytes(b"not tensors at all")
    with pytest.raises(InputError, match="not a readable safetensors file"):
        find_backbone(tmp_path / "broken.safetensors")
    save_file({"conv1.weight": torch.zeros(3)}, tmp_path / "resnet.safetensors")
    with pytest.raises(InputError, match="does not hold a plain ViT"):
        find_backbone(tmp_path / "resnet.safetensors")
