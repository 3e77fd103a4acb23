from __future__ import annotations

import socket
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import huggingface_hub
import pytest
import torch
from backbones.published import DEIT, use_closed_port
from export.local_hub import LocalHub
from helpers import TINY, caprompt, read_tree
from safetensors.torch import save_file

from caprompt.backbones import registry
from caprompt.backbones.constants import CLIP_MEAN
from caprompt.backbones.registry import (
    MODELS,
    find_file,
    find_local_file,
    get_backbones_directory,
    identify_model,
    is_hub_reachable,
)
from caprompt.backbones.vit import ViT, ViTConfig
from caprompt.backbones.weights import DEFAULT_BACKBONE, count_parameters, list_backbones, load_backbone
from caprompt.errors import InputError


@pytest.fixture
def backbones_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Use a directory of the test for weights files, and no network."""
    monkeypatch.setenv("CAPROMPT_BACKBONES", str(tmp_path / "own"))
    monkeypatch.setattr(huggingface_hub, "try_to_load_from_cache", lambda repo, file: None)
    monkeypatch.setattr(registry, "is_hub_reachable", lambda: False)
    (tmp_path / "own").mkdir()
    return tmp_path / "own"


def write_weights(path: Path, config: ViTConfig) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    save_file(ViT(config).state_dict(), path)
    return path


def test_models_of_the_paper_are_registered() -> None:
    base = "vit_base_patch16_224."
    for tag in ("orig_in21k", "augreg_in21k", "augreg_in21k_ft_in1k", "dino", "ibot", "mae", "mocov3"):
        assert MODELS[base + tag].config == ViTConfig(224, 16, 768, 12, 12, 3072)
        assert MODELS[base + tag].tag == tag
    for size in ("tiny", "small", "base"):
        assert f"deit_{size}_patch16_224.fb_in1k" in MODELS
    assert MODELS[base + "orig_in21k"].mean == (0.5, 0.5, 0.5)
    assert MODELS[base + "dino"].mean == (0.485, 0.456, 0.406)
    assert MODELS[base + "orig_in21k"].repo == "timm/vit_base_patch16_224.orig_in21k"


def test_architectures_of_clip_and_dinov2() -> None:
    clip = MODELS["vit_base_patch16_clip_224.openai"]
    assert clip.mean == CLIP_MEAN
    assert clip.file == "open_clip_model.safetensors"  # its repository need not have another one in safetensors
    assert clip.config == ViTConfig(224, 16, 768, 12, 12, 3072, 1e-5, pre_norm=True, quick_gelu=True, patch_bias=False)
    plain, registers = MODELS["vit_small_patch14_dinov2.lvd142m"].config, MODELS["vit_small_patch14_reg4_dinov2.lvd142m"].config
    assert plain == ViTConfig(518, 14, 384, 12, 6, 1536, layer_scale=True)
    assert registers == ViTConfig(518, 14, 384, 12, 6, 1536, layer_scale=True, registers=4, class_position=False)


@pytest.mark.parametrize(
    ("name", "millions"),
    [
        (DEIT, 5.5),
        ("vit_base_patch16_224.dino", 85.8),
        ("vit_small_patch14_dinov2.lvd142m", 22.1),
        ("vit_base_patch14_reg4_dinov2.lvd142m", 86.6),
    ],
)
def test_parameter_counts_are_the_published_ones_without_heads(name: str, millions: float) -> None:
    assert count_parameters(MODELS[name].config) / 1e6 == pytest.approx(millions, abs=0.05)


@pytest.mark.parametrize("suffix", [".safetensors", ".pth"])
def test_file_in_the_backbones_directory_is_loaded_by_model_name(backbones_dir: Path, suffix: str) -> None:
    path = get_backbones_directory() / f"{DEIT}{suffix}"
    weights = ViT(MODELS[DEIT].config).state_dict()
    if suffix == ".pth":
        torch.save({"model": weights}, path)
    else:
        save_file(weights, path)
    assert find_local_file(MODELS[DEIT]) == path
    loaded = load_backbone(DEIT)
    assert (loaded.name, loaded.path, loaded.config) == (DEIT, path, MODELS[DEIT].config)


def test_default_backbones_directory_is_in_the_home_directory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CAPROMPT_BACKBONES", raising=False)
    assert get_backbones_directory() == Path.home() / ".cache" / "caprompt" / "backbones"


def test_hub_cache_is_searched_before_the_hub(backbones_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And a file in the cache is identified by its path, which is what a saved model stores."""
    name = "vit_base_patch16_224.augreg_in21k"
    small = registry.Model(name, MODELS[DEIT].config, (0.5, 0.5, 0.5), (0.5, 0.5, 0.5), repo=f"timm/{name}")
    monkeypatch.setitem(MODELS, name, small)
    cached = write_weights(backbones_dir.parent / f"models--timm--{name}" / "snapshots" / "0" / "model.safetensors", small.config)
    monkeypatch.setattr(huggingface_hub, "try_to_load_from_cache", lambda repo, file: str(cached) if repo == small.repo else None)
    loaded = load_backbone(name)
    assert loaded.path == cached
    reloaded = load_backbone(loaded.path)
    assert (reloaded.name, reloaded.mean, reloaded.sha256) == (name, (0.5, 0.5, 0.5), loaded.sha256)


def test_list_backbones_shows_availability(backbones_dir: Path) -> None:
    write_weights(get_backbones_directory() / f"{DEIT}.safetensors", MODELS[DEIT].config)
    available = {name: where for name, _, where in list_backbones()}
    assert {*MODELS, DEFAULT_BACKBONE} == available.keys()
    assert (available[DEFAULT_BACKBONE], available[DEIT]) == ("in package", "yes")
    assert (available["vit_base_patch16_224.mae"], available["vit_base_patch16_224.ibot"]) == ("no: hub", "no: by hand")


def test_command_prints_full_names_with_sizes(backbones_dir: Path) -> None:
    lines = {line.split()[0]: line for line in caprompt("backbones").stdout.splitlines() if line.split()}
    assert MODELS.keys() <= lines.keys()
    assert lines["vit_small_patch14_reg4_dinov2.lvd142m"].split()[1:4] == ["22.1", "M", "518"]


def test_identify_model_by_file_name() -> None:
    assert identify_model(Path("weights/mine.safetensors")) is None
    assert identify_model(Path(f"weights/{DEIT}.safetensors")) == MODELS[DEIT]


@pytest.fixture
def cache(backbone_hub: LocalHub) -> Path:
    """Return the cache of a hub that serves one backbone."""
    return Path(huggingface_hub.constants.HF_HUB_CACHE)


def list_files(cache: Path) -> list[Path]:
    """Return the files and links of a cache that could be taken for weights, whole or in part."""
    return [path for path in cache.rglob("*") if {"blobs", "snapshots"} & set(path.parts) and not path.is_dir()]


def test_missing_file_is_downloaded_from_the_hub_once(backbone_hub: LocalHub, cache: Path) -> None:
    assert find_local_file(MODELS[DEIT]) is None
    for _ in range(2):
        loaded = load_backbone(DEIT)
        assert (loaded.name, loaded.config, loaded.sha256) == (DEIT, TINY, MODELS[DEIT].sha256)
        assert loaded.path == find_local_file(MODELS[DEIT])
        assert cache in loaded.path.parents
    assert backbone_hub.downloads == [f"timm/{DEIT}/model.safetensors"]


def test_download_is_resumed_where_its_connection_broke(backbone_hub: LocalHub) -> None:
    backbone_hub.break_at = 5000
    assert load_backbone(DEIT).sha256 == MODELS[DEIT].sha256
    assert backbone_hub.downloads == [f"timm/{DEIT}/model.safetensors"] * 2


@pytest.mark.parametrize("recorded", [True, False])
def test_damaged_download_is_deleted(backbone_hub: LocalHub, cache: Path, monkeypatch: pytest.MonkeyPatch, recorded: bool) -> None:
    """Its hash is recorded in the registry, or else it is the one that the hub has."""
    backbone_hub.damaged = True
    expected = MODELS[DEIT].sha256
    if not recorded:
        monkeypatch.setitem(MODELS, DEIT, replace(MODELS[DEIT], sha256=""))
    with pytest.raises(
        InputError, match=rf"download of '{DEIT}' was deleted: its SHA-256 is \w+... and not {expected[:12]}"
    ) as caught:
        find_file(MODELS[DEIT])
    assert len(str(caught.value).splitlines()) == 1
    assert list_files(cache) == []
    assert find_local_file(MODELS[DEIT]) is None
    backbone_hub.damaged = False
    assert find_file(MODELS[DEIT]).is_file()


def test_file_that_the_hub_does_not_have_is_one_sentence(backbone_hub: LocalHub, cache: Path) -> None:
    backbone_hub.commit(f"timm/{DEIT}", {}, deleted=["model.safetensors"])
    with pytest.raises(InputError, match=r"could not be downloaded \(.*404.*\); put 'model.safetensors'") as caught:
        find_file(MODELS[DEIT])
    assert len(str(caught.value).splitlines()) == 1
    assert list_files(cache) == []


def test_without_a_network_nothing_is_written(tmp_path: Path, backbone_hub: LocalHub, monkeypatch: pytest.MonkeyPatch) -> None:
    use_closed_port(tmp_path, monkeypatch)
    with pytest.raises(InputError, match="not on this machine and the hub cannot be reached"):
        find_file(MODELS[DEIT])
    assert read_tree(tmp_path) == {}


def test_licenses_and_sizes() -> None:
    licenses = {name: model.license for name, model in MODELS.items()}
    non_commercial = {"vit_base_patch16_224.mae", "vit_base_patch16_224.mocov3"}
    assert {name for name, license in licenses.items() if license == "CC-BY-NC-4.0"} == non_commercial
    assert licenses.pop("vit_base_patch16_clip_224.openai") == "MIT"
    assert {license for name, license in licenses.items() if name not in non_commercial} == {"Apache-2.0"}
    for model in MODELS.values():
        assert (model.megabytes is None) == (model.repo is None)
        if model.megabytes:  # a file in float32 with or without a head, and CLIP's with its text tower
            assert 0.99 < model.megabytes / (4 * count_parameters(model.config) / 1e6) < 1.2 or model.name.endswith("openai")


def test_offline_error_says_which_file_to_put_where(backbones_dir: Path) -> None:
    where = f"put 'model.safetensors' from https://huggingface.co/timm/{DEIT} at '{backbones_dir / DEIT}.safetensors'"
    with pytest.raises(InputError) as caught:
        load_backbone(DEIT)
    assert "hub cannot be reached" in str(caught.value)
    assert where in str(caught.value)


@pytest.mark.parametrize("name", ["vit_base_patch16_224.ibot", "vit_base_patch16_224.mocov3"])
def test_error_for_models_that_are_not_on_the_hub_links_to_their_authors(backbones_dir: Path, name: str) -> None:
    with pytest.raises(InputError, match=rf"are not on the hub; put '.*' from https://github.com/.* at '.*{name}.pth'"):
        find_file(MODELS[name])


def test_reachability_of_the_hub_is_checked_quickly(monkeypatch: pytest.MonkeyPatch) -> None:
    def connect(address: tuple[str, int], timeout: float) -> Any:
        assert address == ("huggingface.co", 443)
        assert timeout <= 5
        if not reachable:
            raise OSError("no route")
        return SimpleNamespace(close=lambda: None)

    monkeypatch.setattr(socket, "create_connection", connect)
    monkeypatch.setattr(registry, "getproxies", dict)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(huggingface_hub.constants, "ENDPOINT", "https://huggingface.co")
    for reachable in (True, False):
        assert is_hub_reachable() is reachable
    monkeypatch.setattr(registry, "getproxies", lambda: {"https": "http://proxy"})
    assert is_hub_reachable()
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    assert not is_hub_reachable()


def test_file_of_another_model_is_rejected_with_the_first_tensor_and_both_shapes(backbones_dir: Path) -> None:
    name = "vit_base_patch16_224.orig_in21k"
    write_weights(get_backbones_directory() / f"{name}.safetensors", MODELS[DEIT].config)
    with pytest.raises(InputError, match=rf"is not '{name}': 'cls_token' is \(1, 1, 192\) in the weights but \(1, 1, 768\)"):
        load_backbone(name)


def test_huggingface_hub_is_imported_lazily() -> None:
    code = "import sys, caprompt.backbones.weights; print('huggingface_hub' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
