from __future__ import annotations

import json
import resource
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers import SHARED_DATA, TINY, caprompt, tiny_vit, write_backbone
from safetensors.torch import save_file

from caprompt.backbones.vit import ViT, ViTConfig
from caprompt.backbones.weights import DEFAULT_BACKBONE, PACKAGE_DIRECTORY, list_packaged, load_backbone
from caprompt.errors import InputError, UnknownNameError
from caprompt.utils.files import compute_sha256

DEIT_TINY = SHARED_DATA / "deit_tiny_patch16_224.safetensors"
WIDE = ViTConfig(image_size=16, patch_size=4, width=64, depth=2, heads=1, mlp_width=64)  # a head of 64, as timm's have


def test_round_trip_through_a_file(tmp_path: Path) -> None:
    vit = tiny_vit(seed=3)
    loaded = load_backbone(write_backbone(tmp_path / "mine.safetensors", vit))
    assert loaded.config == TINY
    assert loaded.name == "mine"
    assert loaded.mean == (0.5, 0.5, 0.5)
    images = torch.randn(2, 3, 16, 16)
    assert torch.equal(loaded.build()(images), vit(images))


def test_built_network_is_frozen(backbone: Path) -> None:
    vit = load_backbone(backbone).build()
    assert not vit.training
    assert not any(parameter.requires_grad for parameter in vit.parameters())


def test_timms_conventions_apply_without_metadata(tmp_path: Path) -> None:
    config = ViTConfig(image_size=32, patch_size=8, width=128, depth=3, heads=2, mlp_width=256)
    vit = tiny_vit(config=config)
    head = {"head.weight": torch.zeros(10, 128), "head.bias": torch.zeros(10)}
    save_file({**vit.state_dict(), **head}, tmp_path / "plain.safetensors")
    loaded = load_backbone(tmp_path / "plain.safetensors")
    assert loaded.config == config
    assert loaded.std == (0.229, 0.224, 0.225)
    assert "head.weight" not in loaded.weights


def test_default_backbone_is_packaged_and_is_the_one_of_its_model_card() -> None:
    path = list_packaged()[DEFAULT_BACKBONE]
    assert path.stat().st_size <= 6_000_000
    assert compute_sha256(path) in (PACKAGE_DIRECTORY / "MODEL_CARD.md").read_text()
    loaded = load_backbone(DEFAULT_BACKBONE)
    assert loaded.path == path
    assert loaded.config == ViTConfig(image_size=64, patch_size=8, width=192, depth=6, heads=3, mlp_width=768)
    vit = loaded.build()
    assert all(bool(tensor.isfinite().all()) for tensor in vit.state_dict().values())
    assert vit(torch.zeros(1, 3, 64, 64)).isfinite().all()


def test_error_for_unknown_names_lists_known_ones() -> None:
    with pytest.raises(UnknownNameError, match=DEFAULT_BACKBONE):
        load_backbone("vit_huge")
    with pytest.raises(InputError, match=r"no backbone file 'nowhere/x.safetensors'"):
        load_backbone("nowhere/x.safetensors")


ODD_METADATA = ['{"heads": 3}', "[]", '{"heads": 2, "mean": 5}', "{", "{}", '{"heads": 1e999}', '{"heads": 2, "std": [0, 1, 1]}']


@pytest.mark.parametrize(
    "metadata", [*ODD_METADATA, '{"heads": 2, "norm_eps": NaN}', "[" * 10**5, '{"heads": 2, "mean": [NaN, 0, 0]}']
)
def test_metadata_that_does_not_fit_is_rejected(tmp_path: Path, metadata: str) -> None:
    """Also empty metadata: a width of 32 has no head of 64 channels."""
    save_file(tiny_vit().state_dict(), tmp_path / "odd.safetensors", metadata={"caprompt": metadata})
    with pytest.raises(InputError, match="does not hold a plain ViT"):
        load_backbone(tmp_path / "odd.safetensors")


def test_files_without_a_plain_vit_are_rejected(tmp_path: Path) -> None:
    (tmp_path / "broken.safetensors").write_bytes(b"not tensors at all")
    with pytest.raises(InputError, match="not a readable safetensors file"):
        load_backbone(tmp_path / "broken.safetensors")
    save_file({"conv1.weight": torch.zeros(3)}, tmp_path / "resnet.safetensors")
    with pytest.raises(InputError, match="does not hold a plain ViT"):
        load_backbone(tmp_path / "resnet.safetensors")


@pytest.mark.skipif(not DEIT_TINY.is_file(), reason="the data pack with DeiT-Ti is not beside the repository")
def test_real_deit_tiny() -> None:
    loaded = load_backbone(DEIT_TINY)
    assert loaded.config == ViTConfig(image_size=224, patch_size=16, width=192, depth=12, heads=3, mlp_width=768)
    assert (loaded.mean, loaded.std) == ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
    assert not any(name.startswith("head") for name in loaded.weights)
    features = loaded.build()(torch.randn(2, 3, 224, 224, generator=torch.Generator().manual_seed(0)))
    assert features.isfinite().all()
    assert features.std() > 0.5


@pytest.mark.parametrize("name", ["a.pth", "a.pt", "a.bin", "a.pth.tar"])
@pytest.mark.parametrize("zipped", [True, False], ids=["zip", "legacy"])
def test_torch_checkpoints_are_read_by_path(tmp_path: Path, name: str, zipped: bool) -> None:
    vit = tiny_vit(config=WIDE)
    torch.save({"state_dict": vit.state_dict()}, tmp_path / name, _use_new_zipfile_serialization=zipped)
    images = torch.randn(2, 3, 16, 16)
    assert torch.equal(load_backbone(tmp_path / name).build()(images), vit(images))


class Trap:
    """Creates a file when unpickled."""

    def __init__(self, target: Path) -> None:
        self.target = target

    def __reduce__(self) -> tuple[Any, ...]:
        return (Path.touch, (self.target,))


@pytest.mark.parametrize("zipped", [True, False], ids=["zip", "legacy"])
def test_code_in_a_pickle_is_rejected_and_never_run(tmp_path: Path, zipped: bool) -> None:
    checkpoint = {"model": tiny_vit(config=WIDE).state_dict(), "extra": Trap(tmp_path / "ran")}
    torch.save(checkpoint, tmp_path / "trap.pth", _use_new_zipfile_serialization=zipped)
    with pytest.raises(InputError, match=r"trap.pth' holds code besides weights \('.+'\), which is never run"):
        load_backbone(tmp_path / "trap.pth")
    assert not (tmp_path / "ran").exists()


def test_command_rejects_code_in_a_pickle_with_one_sentence_and_status_2(tmp_path: Path) -> None:
    torch.save({"extra": Trap(tmp_path / "ran")}, tmp_path / "trap.pth")
    completed = caprompt("run", "--dataset", "digits", "--backbone", "trap.pth", cwd=tmp_path)
    assert completed.returncode == 2
    assert completed.stderr.startswith("caprompt: 'trap.pth' holds code besides weights")
    assert len(completed.stderr.splitlines()) == 1
    assert not (tmp_path / "ran").exists()


def test_pickled_objects_in_an_npz_are_rejected_and_never_run(tmp_path: Path) -> None:
    np.savez(tmp_path / "trap.npz", cls=np.array([Trap(tmp_path / "ran")], dtype=object))
    with pytest.raises(InputError, match="trap.npz' is not a readable npz file"):
        load_backbone(tmp_path / "trap.npz")
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("suffix", [".safetensors", ".npz", ".pth"])
def test_truncated_files_are_rejected(tmp_path: Path, suffix: str) -> None:
    path, vit = tmp_path / f"mine{suffix}", tiny_vit(config=WIDE)
    if suffix == ".npz":
        np.savez(path, **{name: value.numpy() for name, value in vit.state_dict().items()})  # type: ignore[arg-type]
    elif suffix == ".pth":
        torch.save(vit.state_dict(), path)
    else:
        save_file(vit.state_dict(), path)
    content = path.read_bytes()
    for size in (0, 1, 100, len(content) // 2, len(content) - 1):
        path.write_bytes(content[:size])
        with pytest.raises(InputError, match=f"mine{suffix}' is not a readable"):
            load_backbone(path)


def get_peak_memory() -> int:
    """Return the most memory that this process has used, in MB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024


@pytest.mark.parametrize("zipped", [True, False], ids=["zip", "legacy"])
def test_checkpoint_that_contains_itself_is_rejected(tmp_path: Path, zipped: bool) -> None:
    loop: dict[str, Any] = {"epoch": 3}
    loop["model"] = {"state_dict": loop}
    torch.save(loop, tmp_path / "loop.pth", _use_new_zipfile_serialization=zipped)
    with pytest.raises(InputError, match=r"loop.pth' cannot be used: its network is wrapped too deeply"):
        load_backbone(tmp_path / "loop.pth")


def test_names_of_endless_prefixes_are_rejected(tmp_path: Path) -> None:
    save_file({"module." * 10_000 + "x": torch.zeros(1)}, tmp_path / "long.safetensors")
    with pytest.raises(InputError, match="have too many prefixes"):
        load_backbone(tmp_path / "long.safetensors")


@pytest.mark.parametrize("zipped", [True, False], ids=["zip", "legacy"])
@pytest.mark.parametrize("stride", [(0, 0), (1, 1)])
def test_overlapping_tensors_of_huge_shape_are_rejected_before_memory_is_taken(
    tmp_path: Path, stride: tuple[int, int], zipped: bool
) -> None:
    values = torch.zeros(200_000)
    huge = values.as_strided((100_000, 100_000), stride)  # 40 GB with memory of its own
    torch.save({"cls_token": huge, "epoch": 3}, tmp_path / "huge.pth", _use_new_zipfile_serialization=zipped)
    before = get_peak_memory()
    with pytest.raises(InputError, match=r"huge.pth' is refused: its [0-9,]+ bytes would become 40,000,000,000"):
        load_backbone(tmp_path / "huge.pth")
    assert get_peak_memory() - before < 200


@pytest.mark.parametrize("suffix", [".npz", ".pth"])
def test_archives_that_unpack_to_far_more_are_rejected_before_memory_is_taken(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"bomb{suffix}"
    np.savez_compressed(path if suffix == ".npz" else tmp_path / "bomb.npz", cls=np.zeros(10**8, dtype=np.float32))
    (tmp_path / "bomb.npz").rename(path)
    before = get_peak_memory()
    with pytest.raises(InputError, match=rf"bomb{suffix}' is refused: its [0-9,]+ bytes would become 400,000,"):
        load_backbone(path)
    assert get_peak_memory() - before < 200


def test_shapes_without_values_are_rejected(tmp_path: Path) -> None:
    for name, tensor, message in (
        ("meta", torch.empty(4, 4, device="meta"), "is not an ordinary one"),
        ("sparse", torch.eye(4).to_sparse(), "is not an ordinary one"),
        ("complex", torch.zeros(4, 4, dtype=torch.complex64), "is not an ordinary one"),
        ("empty", torch.zeros(0, 3, 10**9, 10**9), "does not hold a plain ViT"),
    ):
        weights = {**tiny_vit(config=WIDE).state_dict(), "patch_embed.proj.weight": tensor}
        torch.save(weights, tmp_path / f"{name}.pth")
        with pytest.raises(InputError, match=message):
            load_backbone(tmp_path / f"{name}.pth")


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("blocks.0.attn.qkv.bias", float("nan"), r"its 'blocks\.0\.attn\.qkv\.bias' has values that are not finite"),
        ("patch_embed.proj.weight", float("inf"), "has values that are not finite"),
        ("patch_embed.proj.weight", 0.0, "are 0, so that all images would look the same"),
        ("blocks.1.mlp.fc1.weight", 0.02, "are 0.02, so that all images would look the same"),
        ("norm.weight", 0.0, "are 0, so that all images would look the same"),
    ],
)
def test_weights_that_nobody_trained_are_rejected(tmp_path: Path, name: str, value: float, message: str) -> None:
    vit = tiny_vit()
    vit.state_dict()[name].fill_(value)
    with pytest.raises(InputError, match=message):
        load_backbone(write_backbone(tmp_path / "bad.safetensors", vit))


def test_single_value_that_is_not_finite_is_found(tmp_path: Path) -> None:
    vit = tiny_vit()
    vit.state_dict()["blocks.1.mlp.fc2.weight"][3, 5] = float("-inf")
    with pytest.raises(InputError, match=r"its 'blocks\.1\.mlp\.fc2\.weight' has values that are not finite"):
        load_backbone(write_backbone(tmp_path / "bad.safetensors", vit))


def test_checkpoints_without_named_tensors_are_rejected(tmp_path: Path) -> None:
    torch.save([torch.zeros(3)], tmp_path / "list.pt")
    with pytest.raises(InputError, match="list.pt' holds a list, not tensors by name"):
        load_backbone(tmp_path / "list.pt")
    torch.save({"epoch": 3}, tmp_path / "empty.pt")
    with pytest.raises(InputError, match="empty.pt' does not hold a plain ViT"):
        load_backbone(tmp_path / "empty.pt")
    with zipfile.ZipFile(tmp_path / "photos.pt", "w") as file:
        file.writestr("a.txt", "hello")
    with pytest.raises(InputError, match="photos.pt' is not a readable torch checkpoint"):
        load_backbone(tmp_path / "photos.pt")


def hf_vit(vit: ViT) -> dict[str, torch.Tensor]:
    """Return the tensors of a ViT under Hugging Face's names."""
    names = {
        "cls_token": "embeddings.cls_token",
        "pos_embed": "embeddings.position_embeddings",
        "patch_embed.proj": "embeddings.patch_embeddings.projection",
        "blocks": "encoder.layer",
        "norm1": "layernorm_before",
        "norm2": "layernorm_after",
        "attn.proj": "attention.output.dense",
        "mlp.fc1": "intermediate.dense",
        "mlp.fc2": "output.dense",
    }
    out = {}
    for name, value in vit.state_dict().items():
        for ours, theirs in names.items():
            name = name.replace(ours, theirs)
        if ".attn.qkv." in name:
            for part, tensor in zip(("query", "key", "value"), value.chunk(3), strict=True):
                out[name.replace("attn.qkv", f"attention.attention.{part}")] = tensor.clone()
        else:
            out[f"layernorm.{name[5:]}" if name.startswith("norm.") else name] = value
    return out


def test_hugging_face_configs_next_to_a_file_are_used(tmp_path: Path) -> None:
    save_file(hf_vit(tiny_vit()), tmp_path / "model.safetensors")
    with pytest.raises(InputError, match="32 cannot be split into 0 heads"):
        load_backbone(tmp_path / "model.safetensors")
    config = {"num_attention_heads": 2, "layer_norm_eps": 1e-3, "hidden_act": "gelu"}
    (tmp_path / "config.json").write_text(json.dumps(config))
    (tmp_path / "preprocessor_config.json").write_text(json.dumps({"image_mean": [0.1, 0.2, 0.3], "image_std": [1, 1, 1]}))
    loaded = load_backbone(tmp_path / "model.safetensors")
    assert (loaded.config.heads, loaded.config.norm_eps, loaded.config.quick_gelu) == (2, 1e-3, False)
    assert (loaded.mean, loaded.std) == ((0.1, 0.2, 0.3), (1.0, 1.0, 1.0))
    (tmp_path / "config.json").write_text(json.dumps(config | {"hidden_act": "relu"}))
    with pytest.raises(InputError, match="its activation is 'relu', which is not supported"):
        load_backbone(tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(InputError, match="config.json' is not JSON"):
        load_backbone(tmp_path / "model.safetensors")


def test_describe_includes_the_normalization(backbone: Path) -> None:
    assert load_backbone(backbone).describe() == {
        "name": "tiny",
        "sha256": compute_sha256(backbone),
        "image_size": 16,
        "norm_eps": 1e-6,
        "mean": [0.5, 0.5, 0.5],
        "std": [0.5, 0.5, 0.5],
    }
