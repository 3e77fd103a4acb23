from __future__ import annotations

import socket
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import huggingface_hub
import pytest
import torch
from helpers import caprompt
from safetensors.torch import save_file

from caprompt.backbones import registry
from caprompt.backbones.constants import CLIP_MEAN
from caprompt.backbones.registry import MODELS, backbones_directory, find_file, find_local_file, hub_is_reachable, model_of_file
from caprompt.backbones.vit import ViT, ViTConfig
from caprompt.backbones.weights import DEFAULT_BACKBONE, count_parameters, list_backbones, load_backbone
from caprompt.errors import InputError

DEIT = "deit_tiny_patch16_224.fb_in1k"


@pytest.fixture
def places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Folders of our own, and no network."""
    monkeypatch.setenv("CAPROMPT_BACKBONES", str(tmp_path / "own"))
    monkeypatch.setattr(huggingface_hub, "try_to_load_from_cache", lambda repo, file: None)
    monkeypatch.setattr(registry, "hub_is_reachable", lambda: False)
    (tmp_path / "own").mkdir()
    return tmp_path


def write_weights(path: Path, config: ViTConfig) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    save_file(ViT(config).state_dict(), path)
    return path


def test_the_papers_and_the_other_models_are_known() -> None:
    base = "vit_base_patch16_224."
    for tag in ("orig_in21k", "augreg_in21k", "augreg_in21k_ft_in1k", "dino", "ibot", "mae", "mocov3"):
        assert MODELS[base + tag].config == ViTConfig(224, 16, 768, 12, 12, 3072)
        assert MODELS[base + tag].tag == tag
    for size in ("tiny", "small", "base"):
        assert f"deit_{size}_patch16_224.fb_in1k" in MODELS
    assert MODELS[base + "orig_in21k"].mean == (0.5, 0.5, 0.5)
    assert MODELS[base + "dino"].mean == (0.485, 0.456, 0.406)
    assert MODELS[base + "orig_in21k"].repo == "timm/vit_base_patch16_224.orig_in21k"


def test_clip_and_dinov2_are_described_as_they_are() -> None:
    clip = MODELS["vit_base_patch16_clip_224.openai"]
    assert clip.mean == CLIP_MEAN
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
def test_sizes_are_those_their_authors_state(name: str, millions: float) -> None:
    """Without heads."""
    assert count_parameters(MODELS[name].config) / 1e6 == pytest.approx(millions, abs=0.05)


@pytest.mark.parametrize("suffix", [".safetensors", ".pth"])
def test_a_file_put_into_the_folder_is_found_by_the_models_name(places: Path, suffix: str) -> None:
    path = backbones_directory() / f"{DEIT}{suffix}"
    weights = ViT(MODELS[DEIT].config).state_dict()
    if suffix == ".pth":
        torch.save({"model": weights}, path)
    else:
        save_file(weights, path)
    assert find_local_file(MODELS[DEIT]) == path
    found = load_backbone(DEIT)
    assert (found.name, found.path, found.config) == (DEIT, path, MODELS[DEIT].config)


def test_the_folder_is_below_home_by_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CAPROMPT_BACKBONES", raising=False)
    assert backbones_directory() == Path.home() / ".cache" / "caprompt" / "backbones"


def test_the_hubs_cache_is_looked_into_before_the_hub(places: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And a file there is known again by its path, as a saved model does, with the mean that goes with it."""
    name = "vit_base_patch16_224.augreg_in21k"
    small = registry.Model(name, MODELS[DEIT].config, (0.5, 0.5, 0.5), (0.5, 0.5, 0.5), repo=f"timm/{name}")
    monkeypatch.setitem(MODELS, name, small)
    cached = write_weights(places / f"models--timm--{name}" / "snapshots" / "0" / "model.safetensors", small.config)
    monkeypatch.setattr(huggingface_hub, "try_to_load_from_cache", lambda repo, file: str(cached) if repo == small.repo else None)
    found = load_backbone(name)
    assert found.path == cached
    again = load_backbone(found.path)
    assert (again.name, again.mean, again.sha256) == (name, (0.5, 0.5, 0.5), found.sha256)


def test_the_list_says_what_is_present(places: Path) -> None:
    write_weights(backbones_directory() / f"{DEIT}.safetensors", MODELS[DEIT].config)
    present = {name: where for name, _, where in list_backbones()}
    assert {*MODELS, DEFAULT_BACKBONE} == present.keys()
    assert (present[DEFAULT_BACKBONE], present[DEIT]) == ("in package", "yes")
    assert (present["vit_base_patch16_224.mae"], present["vit_base_patch16_224.ibot"]) == ("no: hub", "no: by hand")


def test_the_command_prints_whole_names_with_their_sizes(places: Path) -> None:
    lines = {line.split()[0]: line for line in caprompt("backbones").stdout.splitlines() if line.split()}
    assert MODELS.keys() <= lines.keys()
    assert lines["vit_small_patch14_reg4_dinov2.lvd142m"].split()[1:5] == ["22.1", "M", "518,", "14"]


def test_a_file_elsewhere_belongs_to_no_model() -> None:
    assert model_of_file(Path("weights/mine.safetensors")) is None
    assert model_of_file(Path(f"weights/{DEIT}.safetensors")) == MODELS[DEIT]


def test_what_is_not_there_is_fetched_from_the_hub(places: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[str, str]] = []

    def download(repo: str, file: str) -> str:
        asked.append((repo, file))
        return str(write_weights(places / "model.safetensors", MODELS[DEIT].config))

    monkeypatch.setattr(registry, "hub_is_reachable", lambda: True)
    monkeypatch.setattr(huggingface_hub, "hf_hub_download", download)
    assert load_backbone(DEIT).config.width == 192
    assert asked == [(f"timm/{DEIT}", "model.safetensors")]


def test_offline_the_error_says_which_file_to_put_where(places: Path) -> None:
    where = f"put 'model.safetensors' from https://huggingface.co/timm/{DEIT} at '{places / 'own' / DEIT}.safetensors'"
    with pytest.raises(InputError) as caught:
        load_backbone(DEIT)
    assert "hub is out of reach" in str(caught.value)
    assert where in str(caught.value)


@pytest.mark.parametrize("name", ["vit_base_patch16_224.ibot", "vit_base_patch16_224.mocov3"])
def test_what_no_hub_holds_is_said_to_be_with_its_authors(places: Path, name: str) -> None:
    with pytest.raises(InputError, match=rf"on no hub: put '.*' from https://github.com/.* at '.*{name}.pth'"):
        find_file(MODELS[name])


def test_a_download_that_fails_is_one_sentence(places: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def download(repo: str, file: str) -> str:
        raise huggingface_hub.errors.LocalEntryNotFoundError("no connection\nmore\nlines")

    monkeypatch.setattr(registry, "hub_is_reachable", lambda: True)
    monkeypatch.setattr(huggingface_hub, "hf_hub_download", download)
    with pytest.raises(InputError, match=r"could not be fetched \(no connection\): put 'model.safetensors'"):
        find_file(MODELS[DEIT])


def test_whether_the_hub_answers_is_found_out_quickly(monkeypatch: pytest.MonkeyPatch) -> None:
    def connect(address: tuple[str, int], timeout: float) -> Any:
        assert address == ("huggingface.co", 443)
        assert timeout <= 5
        if not answers:
            raise OSError("no route")
        return SimpleNamespace(close=lambda: None)

    monkeypatch.setattr(socket, "create_connection", connect)
    monkeypatch.setattr(registry, "getproxies", dict)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(huggingface_hub.constants, "ENDPOINT", "https://huggingface.co")
    for answers in (True, False):
        assert hub_is_reachable() is answers
    monkeypatch.setattr(registry, "getproxies", lambda: {"https": "http://proxy"})
    assert hub_is_reachable()
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    assert not hub_is_reachable()


def test_another_models_file_is_refused_with_the_first_tensor_and_both_shapes(places: Path) -> None:
    name = "vit_base_patch16_224.orig_in21k"
    write_weights(backbones_directory() / f"{name}.safetensors", MODELS[DEIT].config)
    with pytest.raises(InputError, match=rf"is not '{name}': 'cls_token' is \(1, 1, 192\) in the weights but \(1, 1, 768\)"):
        load_backbone(name)


def test_the_hubs_program_is_imported_only_where_used() -> None:
    import subprocess

    code = "import sys, caprompt.backbones.weights; print('huggingface_hub' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
