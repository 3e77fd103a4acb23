"""Checkpoints of each library, against forward passes in that library's own conventions."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from safetensors.torch import save_file
from torch import Tensor

from caprompt.backbones.constants import CLIP_MEAN
from caprompt.backbones.converters import convert_to_timm
from caprompt.backbones.vit import ViTConfig
from caprompt.backbones.weights import load_backbone
from caprompt.errors import InputError

WIDTH, HEADS, DEPTH, MLP, PATCH, SIZE, REGISTERS = 128, 2, 2, 192, 4, 12, 4
PATCHES = (SIZE // PATCH) ** 2
CONFIG = ViTConfig(SIZE, PATCH, WIDTH, DEPTH, HEADS, MLP)
Weights = dict[str, Tensor]


def make_images() -> Tensor:
    return torch.randn(3, 3, SIZE, SIZE, generator=torch.Generator().manual_seed(5))


class RandomWeights:
    """Draws random tensors; norm weights are near one, as trained ones are."""

    def __init__(self, seed: int = 0) -> None:
        self.generator = torch.Generator().manual_seed(seed)

    def __call__(self, *shape: int) -> Tensor:
        return torch.randn(shape, generator=self.generator) * 0.1

    def norm(self, name: str, weight: str = ".weight", bias: str = ".bias") -> Weights:
        return {name + weight: 1 + self(WIDTH), name + bias: self(WIDTH)}

    def linear(self, name: str, into: int, out: int) -> Weights:
        return {f"{name}.weight": self(out, into), f"{name}.bias": self(out)}


# The parts that all transformers share.


def layer_norm(x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    centered = x - x.mean(dim=-1, keepdim=True)
    return centered / (centered.square().mean(dim=-1, keepdim=True) + eps).sqrt() * weight + bias


def gelu(x: Tensor) -> Tensor:
    return 0.5 * x * (1 + torch.erf(x / 2**0.5))


def quick_gelu(x: Tensor) -> Tensor:
    return x / (1 + torch.exp(-1.702 * x))


def attend(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    size, heads = WIDTH // HEADS, []
    for columns in torch.arange(WIDTH).split(size):
        scores = query[..., columns] @ key[..., columns].transpose(1, 2) / size**0.5
        heads.append(scores.softmax(dim=-1) @ value[..., columns])
    return torch.cat(heads, dim=-1)


def cut_patches(x: Tensor) -> Tensor:
    """Return patches (B, n, 3 * PATCH * PATCH) in the order of a convolution's kernel."""
    rows = [x[:, :, i : i + PATCH, j : j + PATCH].flatten(1) for i in range(0, SIZE, PATCH) for j in range(0, SIZE, PATCH)]
    return torch.stack(rows, dim=1)


class Layer:
    """Applies linear layers and norms by name: `layer("fc1", x)`."""

    def __init__(self, w: Weights, prefix: str = "", eps: float = 1e-6) -> None:
        self.w, self.prefix, self.eps = w, prefix, eps

    def __call__(self, name: str, x: Tensor) -> Tensor:
        return x @ self.w[f"{self.prefix}{name}.weight"].T + self.w[f"{self.prefix}{name}.bias"]

    def norm(self, name: str, x: Tensor) -> Tensor:
        return layer_norm(x, self.w[f"{self.prefix}{name}.weight"], self.w[f"{self.prefix}{name}.bias"], self.eps)


def repeat_rows(rows: Tensor, x: Tensor) -> Tensor:
    return rows.reshape(1, -1, WIDTH).repeat(len(x), 1, 1)


# timm's names, which DINO, iBOT, MAE, MoCo v3 and DINOv2 share


def timm_weights(draw: RandomWeights, scale: bool = False) -> Weights:
    w = {"cls_token": draw(1, 1, WIDTH), "pos_embed": draw(1, 1 + PATCHES, WIDTH)}
    w |= {"patch_embed.proj.weight": draw(WIDTH, 3, PATCH, PATCH), "patch_embed.proj.bias": draw(WIDTH)}
    for block in (f"blocks.{i}." for i in range(DEPTH)):
        w |= draw.norm(block + "norm1") | draw.norm(block + "norm2")
        w |= draw.linear(block + "attn.qkv", WIDTH, 3 * WIDTH) | draw.linear(block + "attn.proj", WIDTH, WIDTH)
        w |= draw.linear(block + "mlp.fc1", WIDTH, MLP) | draw.linear(block + "mlp.fc2", MLP, WIDTH)
        if scale:
            w |= {block + "ls1.gamma": 1 + draw(WIDTH), block + "ls2.gamma": 1 + draw(WIDTH)}
    return w | draw.norm("norm")


def timm_forward(w: Weights, x: Tensor) -> Tensor:
    h = cut_patches(x) @ w["patch_embed.proj.weight"].flatten(1).T + w["patch_embed.proj.bias"]
    h = torch.cat([repeat_rows(w["cls_token"], x), h], dim=1) + w["pos_embed"]
    if "register_tokens" in w:  # DINOv2's own order: positions first, then registers after the class token
        h = torch.cat([h[:, :1], repeat_rows(w["register_tokens"], x), h[:, 1:]], dim=1)
    for i in range(DEPTH):
        layer = Layer(w, f"blocks.{i}.")
        ls1, ls2 = (w.get(f"blocks.{i}.ls{part}.gamma", torch.ones(WIDTH).double()) for part in (1, 2))
        query, key, value = layer("attn.qkv", layer.norm("norm1", h)).split(WIDTH, dim=-1)
        h = h + ls1 * layer("attn.proj", attend(query, key, value))
        h = h + ls2 * layer("mlp.fc2", gelu(layer("mlp.fc1", layer.norm("norm2", h))))
    return Layer(w).norm("norm", h)[:, 0]


def add_prefix(prefix: str, w: Weights) -> Weights:
    return {prefix + name: value for name, value in w.items()}


def zeros_like(w: Weights) -> Weights:
    return {name: torch.zeros_like(value) for name, value in w.items()}


def dino_full(w: Weights) -> dict[str, Any]:
    head = {"head.mlp.0.weight": torch.ones(8, WIDTH), "head.last_layer.weight_g": torch.ones(8, 1)}
    student = add_prefix("module.backbone.", zeros_like(w)) | add_prefix("module.", head)
    teacher = add_prefix("backbone.", w) | head
    return {"student": student, "teacher": teacher, "epoch": 800, "args": argparse.Namespace(arch="vit_base"), "dino_loss": {}}


def mae(w: Weights) -> dict[str, Any]:
    decoder = {
        "mask_token": torch.ones(1, 1, 64),
        "decoder_pos_embed": torch.ones(1, 10, 64),
        "decoder_embed.weight": torch.ones(64, WIDTH),
        "decoder_blocks.0.norm1.weight": torch.ones(64),
        "decoder_norm.weight": torch.ones(64),
        "decoder_pred.weight": torch.ones(48, 64),
    }
    return {"model": w | decoder}


def moco(w: Weights) -> dict[str, Any]:
    heads = {"module.base_encoder.head.0.weight": torch.ones(8, WIDTH), "module.predictor.0.weight": torch.ones(8, 8)}
    encoders = add_prefix("module.base_encoder.", w) | add_prefix("module.momentum_encoder.", zeros_like(w))
    return {"epoch": 300, "arch": "vit_base", "state_dict": encoders | heads, "optimizer": {"state": {}}}


TIMM_LIKE: dict[str, Callable[[Weights], dict[str, Any]]] = {
    "timm with head": lambda w: w | {"head.weight": torch.ones(10, WIDTH), "head.bias": torch.ones(10)},
    "timm compiled": lambda w: {"state_dict": add_prefix("_orig_mod.module.", w)},
    "DINO backbone": dict,
    "DINO full": dino_full,
    "iBOT": lambda w: {"state_dict": w | {"masked_embed": torch.ones(1, WIDTH)}},
    "MAE": mae,
    "MoCo v3": moco,
}


def max_error(path: Path, reference: Callable[[Weights, Tensor], Tensor], w: Weights) -> float:
    """Return the largest difference between the loaded network and the reference in float64."""
    expected = reference({name: value.double() for name, value in w.items()}, make_images().double())
    assert expected.std() > 0.1
    return float((load_backbone(path).build()(make_images()) - expected).abs().max())


@pytest.mark.parametrize("layout", TIMM_LIKE)
def test_checkpoints_with_timms_names(tmp_path: Path, layout: str) -> None:
    w = timm_weights(RandomWeights())
    path = tmp_path / "mine.pth"
    torch.save(TIMM_LIKE[layout](w), path)
    assert max_error(path, timm_forward, w) < 1e-5
    assert load_backbone(path).config == CONFIG


@pytest.mark.parametrize("registers", [0, REGISTERS])
def test_dinov2_original(tmp_path: Path, registers: int) -> None:
    draw = RandomWeights(1)
    w = timm_weights(draw, scale=True) | {"mask_token": draw(1, WIDTH)}
    if registers:
        w["register_tokens"] = draw(1, registers, WIDTH)
    torch.save(w, tmp_path / "mine.pth")
    assert max_error(tmp_path / "mine.pth", timm_forward, w) < 1e-5
    config = load_backbone(tmp_path / "mine.pth").config
    assert (config.layer_scale, config.registers, config.class_position) == (True, registers, not registers)


def timm_registers_forward(w: Weights, x: Tensor) -> Tensor:
    """As with timm's `no_embed_class`: only patches have positions."""
    h = cut_patches(x) @ w["patch_embed.proj.weight"].flatten(1).T + w["patch_embed.proj.bias"] + w["pos_embed"]
    h = torch.cat([repeat_rows(w["cls_token"], x), repeat_rows(w["reg_token"], x), h], dim=1)
    for i in range(DEPTH):
        layer = Layer(w, f"blocks.{i}.")
        query, key, value = layer("attn.qkv", layer.norm("norm1", h)).split(WIDTH, dim=-1)
        h = h + w[f"blocks.{i}.ls1.gamma"] * layer("attn.proj", attend(query, key, value))
        h = h + w[f"blocks.{i}.ls2.gamma"] * layer("mlp.fc2", gelu(layer("mlp.fc1", layer.norm("norm2", h))))
    return Layer(w).norm("norm", h)[:, 0]


def test_dinov2_with_registers_from_timm(tmp_path: Path) -> None:
    draw = RandomWeights(2)
    w = timm_weights(draw, scale=True) | {"reg_token": draw(1, REGISTERS, WIDTH), "pos_embed": draw(1, PATCHES, WIDTH)}
    save_file(w, tmp_path / "mine.safetensors")
    assert max_error(tmp_path / "mine.safetensors", timm_registers_forward, w) < 1e-5


# Google's npz: images as HWC, kernels as HWIO and (in, out), heads as an axis


def google_weights(draw: RandomWeights) -> Weights:
    size = WIDTH // HEADS
    w = {"cls": draw(1, 1, WIDTH), "Transformer/posembed_input/pos_embedding": draw(1, 1 + PATCHES, WIDTH)}
    w |= {"embedding/kernel": draw(PATCH, PATCH, 3, WIDTH), "embedding/bias": draw(WIDTH)}
    for block in (f"Transformer/encoderblock_{i}/" for i in range(DEPTH)):
        w |= draw.norm(block + "LayerNorm_0", "/scale", "/bias") | draw.norm(block + "LayerNorm_2", "/scale", "/bias")
        for part in ("query", "key", "value"):
            name = f"{block}MultiHeadDotProductAttention_1/{part}/"
            w |= {name + "kernel": draw(WIDTH, HEADS, size), name + "bias": draw(HEADS, size)}
        name = f"{block}MultiHeadDotProductAttention_1/out/"
        w |= {name + "kernel": draw(HEADS, size, WIDTH), name + "bias": draw(WIDTH)}
        w |= {f"{block}MlpBlock_3/Dense_0/kernel": draw(WIDTH, MLP), f"{block}MlpBlock_3/Dense_0/bias": draw(MLP)}
        w |= {f"{block}MlpBlock_3/Dense_1/kernel": draw(MLP, WIDTH), f"{block}MlpBlock_3/Dense_1/bias": draw(WIDTH)}
    heads = {
        "pre_logits/kernel": draw(WIDTH, WIDTH),
        "pre_logits/bias": draw(WIDTH),
        "head/kernel": draw(WIDTH, 9),
        "head/bias": draw(9),
    }
    return w | draw.norm("Transformer/encoder_norm", "/scale", "/bias") | heads


def google_forward(w: Weights, x: Tensor) -> Tensor:
    grid = SIZE // PATCH
    hwc = x.permute(0, 2, 3, 1).reshape(len(x), grid, PATCH, grid, PATCH, 3)
    h = torch.einsum("bihjwc,hwco->bijo", hwc, w["embedding/kernel"]).flatten(1, 2) + w["embedding/bias"]
    h = torch.cat([repeat_rows(w["cls"], x), h], dim=1) + w["Transformer/posembed_input/pos_embedding"]
    for block in (f"Transformer/encoderblock_{i}/" for i in range(DEPTH)):
        y = layer_norm(h, w[block + "LayerNorm_0/scale"], w[block + "LayerNorm_0/bias"], 1e-6)
        name = block + "MultiHeadDotProductAttention_1/"
        query, key, value = (
            torch.einsum("bnd,dhk->bnhk", y, w[f"{name}{part}/kernel"]) + w[f"{name}{part}/bias"]
            for part in ("query", "key", "value")
        )
        scores = torch.einsum("bnhk,bmhk->bhnm", query, key) / (WIDTH // HEADS) ** 0.5
        mixed = torch.einsum("bhnm,bmhk->bnhk", scores.softmax(dim=-1), value)
        h = h + torch.einsum("bnhk,hkd->bnd", mixed, w[name + "out/kernel"]) + w[name + "out/bias"]
        y = layer_norm(h, w[block + "LayerNorm_2/scale"], w[block + "LayerNorm_2/bias"], 1e-6)
        y = gelu(y @ w[block + "MlpBlock_3/Dense_0/kernel"] + w[block + "MlpBlock_3/Dense_0/bias"])
        h = h + y @ w[block + "MlpBlock_3/Dense_1/kernel"] + w[block + "MlpBlock_3/Dense_1/bias"]
    return layer_norm(h, w["Transformer/encoder_norm/scale"], w["Transformer/encoder_norm/bias"], 1e-6)[:, 0]


@pytest.mark.parametrize("prefix", ["", "opt/target/"])
def test_google_npz(tmp_path: Path, prefix: str) -> None:
    w = google_weights(RandomWeights(3))
    arrays: dict[str, NDArray[np.float32]] = {prefix + name: value.numpy() for name, value in w.items()}
    np.savez(tmp_path / "ViT-B_16.npz", **arrays)  # type: ignore[arg-type]
    assert max_error(tmp_path / "ViT-B_16.npz", google_forward, w) < 1e-5
    loaded = load_backbone(tmp_path / "ViT-B_16.npz")
    assert loaded.config == CONFIG
    assert loaded.mean == loaded.std == (0.5, 0.5, 0.5)


# Hugging Face transformers


def hf_common(draw: RandomWeights, block: str) -> Weights:
    w: Weights = {}
    for part in ("query", "key", "value"):
        w |= draw.linear(f"{block}attention.attention.{part}", WIDTH, WIDTH)
    return w | draw.linear(f"{block}attention.output.dense", WIDTH, WIDTH)


def hf_embeddings(draw: RandomWeights) -> Weights:
    return {
        "embeddings.cls_token": draw(1, 1, WIDTH),
        "embeddings.position_embeddings": draw(1, 1 + PATCHES, WIDTH),
        "embeddings.patch_embeddings.projection.weight": draw(WIDTH, 3, PATCH, PATCH),
        "embeddings.patch_embeddings.projection.bias": draw(WIDTH),
    }


def hf_embed(w: Weights, x: Tensor) -> Tensor:
    projection = "embeddings.patch_embeddings.projection."
    h = cut_patches(x) @ w[projection + "weight"].flatten(1).T + w[projection + "bias"]
    return torch.cat([repeat_rows(w["embeddings.cls_token"], x), h], dim=1) + w["embeddings.position_embeddings"]


def hf_vit_weights(draw: RandomWeights) -> Weights:
    w = hf_embeddings(draw)
    for block in (f"encoder.layer.{i}." for i in range(DEPTH)):
        w |= hf_common(draw, block) | draw.norm(block + "layernorm_before") | draw.norm(block + "layernorm_after")
        w |= draw.linear(block + "intermediate.dense", WIDTH, MLP) | draw.linear(block + "output.dense", MLP, WIDTH)
    return w | draw.norm("layernorm")


def hf_attention(layer: Layer, y: Tensor) -> Tensor:
    query, key, value = (layer(f"attention.attention.{part}", y) for part in ("query", "key", "value"))
    return layer("attention.output.dense", attend(query, key, value))


def hf_vit_forward(w: Weights, x: Tensor) -> Tensor:
    h = hf_embed(w, x)
    for i in range(DEPTH):
        layer = Layer(w, f"encoder.layer.{i}.", eps=1e-12)
        h = h + hf_attention(layer, layer.norm("layernorm_before", h))
        h = h + layer("output.dense", gelu(layer("intermediate.dense", layer.norm("layernorm_after", h))))
    return Layer(w, eps=1e-12).norm("layernorm", h)[:, 0]


@pytest.mark.parametrize(
    ("prefix", "others"),
    [
        ("", {"pooler.dense.weight": torch.ones(WIDTH, WIDTH), "pooler.dense.bias": torch.ones(WIDTH)}),
        ("vit.", {"classifier.weight": torch.ones(5, WIDTH), "classifier.bias": torch.ones(5)}),
        ("vit.", {"decoder.mask_token": torch.ones(1, 1, 8), "decoder.decoder_layers.0.output.dense.weight": torch.ones(8, 8)}),
    ],
    ids=["ViTModel", "ViTForImageClassification", "ViTMAEForPreTraining"],
)
def test_hugging_face_vit(tmp_path: Path, prefix: str, others: Weights) -> None:
    w = hf_vit_weights(RandomWeights(4))
    torch.save(add_prefix(prefix, w) | others, tmp_path / "pytorch_model.bin")
    assert max_error(tmp_path / "pytorch_model.bin", hf_vit_forward, w) < 1e-5
    assert load_backbone(tmp_path / "pytorch_model.bin").config.norm_eps == 1e-12


def hf_dinov2_weights(draw: RandomWeights, registers: int) -> Weights:
    w = hf_embeddings(draw) | {"embeddings.mask_token": draw(1, WIDTH)}
    if registers:
        w["embeddings.register_tokens"] = draw(1, registers, WIDTH)
    for block in (f"encoder.layer.{i}." for i in range(DEPTH)):
        w |= hf_common(draw, block) | draw.norm(block + "norm1") | draw.norm(block + "norm2")
        w |= {block + "layer_scale1.lambda1": 1 + draw(WIDTH), block + "layer_scale2.lambda1": 1 + draw(WIDTH)}
        w |= draw.linear(block + "mlp.fc1", WIDTH, MLP) | draw.linear(block + "mlp.fc2", MLP, WIDTH)
    return w | draw.norm("layernorm")


def hf_dinov2_forward(w: Weights, x: Tensor) -> Tensor:
    h = hf_embed(w, x)
    if "embeddings.register_tokens" in w:
        h = torch.cat([h[:, :1], repeat_rows(w["embeddings.register_tokens"], x), h[:, 1:]], dim=1)
    for i in range(DEPTH):
        layer = Layer(w, f"encoder.layer.{i}.")
        h = h + hf_attention(layer, layer.norm("norm1", h)) * w[f"encoder.layer.{i}.layer_scale1.lambda1"]
        h = h + layer("mlp.fc2", gelu(layer("mlp.fc1", layer.norm("norm2", h)))) * w[f"encoder.layer.{i}.layer_scale2.lambda1"]
    return Layer(w).norm("layernorm", h)[:, 0]


@pytest.mark.parametrize(("prefix", "registers"), [("", 0), ("dinov2.", 0), ("", REGISTERS), ("dinov2_with_registers.", REGISTERS)])
def test_hugging_face_dinov2(tmp_path: Path, prefix: str, registers: int) -> None:
    w = hf_dinov2_weights(RandomWeights(5), registers)
    save_file(add_prefix(prefix, w), tmp_path / "model.safetensors")
    assert max_error(tmp_path / "model.safetensors", hf_dinov2_forward, w) < 1e-5
    assert load_backbone(tmp_path / "model.safetensors").config.norm_eps == 1e-6


def hf_clip_weights(draw: RandomWeights) -> Weights:
    w = {
        "embeddings.class_embedding": draw(WIDTH),
        "embeddings.position_embedding.weight": draw(1 + PATCHES, WIDTH),
        "embeddings.patch_embedding.weight": draw(WIDTH, 3, PATCH, PATCH),
    }
    for block in (f"encoder.layers.{i}." for i in range(DEPTH)):
        for part in ("q_proj", "k_proj", "v_proj", "out_proj"):
            w |= draw.linear(f"{block}self_attn.{part}", WIDTH, WIDTH)
        w |= draw.norm(block + "layer_norm1") | draw.norm(block + "layer_norm2")
        w |= draw.linear(block + "mlp.fc1", WIDTH, MLP) | draw.linear(block + "mlp.fc2", MLP, WIDTH)
    return w | draw.norm("pre_layrnorm") | draw.norm("post_layernorm")


def hf_clip_forward(w: Weights, x: Tensor) -> Tensor:
    h = cut_patches(x) @ w["embeddings.patch_embedding.weight"].flatten(1).T
    h = torch.cat([repeat_rows(w["embeddings.class_embedding"], x), h], dim=1) + w["embeddings.position_embedding.weight"]
    h = Layer(w, eps=1e-5).norm("pre_layrnorm", h)
    for i in range(DEPTH):
        layer = Layer(w, f"encoder.layers.{i}.", eps=1e-5)
        y = layer.norm("layer_norm1", h)
        query, key, value = (layer(f"self_attn.{part}_proj", y) for part in "qkv")
        h = h + layer("self_attn.out_proj", attend(query, key, value))
        h = h + layer("mlp.fc2", quick_gelu(layer("mlp.fc1", layer.norm("layer_norm2", h))))
    return Layer(w, eps=1e-5).norm("post_layernorm", h)[:, 0]


def test_hugging_face_clip(tmp_path: Path) -> None:
    w = hf_clip_weights(RandomWeights(6))
    others = {
        "vision_model.embeddings.position_ids": torch.arange(1 + PATCHES)[None],
        "visual_projection.weight": torch.ones(8, WIDTH),
        "text_projection.weight": torch.ones(8, 64),
        "text_model.encoder.layers.0.self_attn.q_proj.weight": torch.ones(64, 64),
        "logit_scale": torch.tensor(4.6),
    }
    save_file(add_prefix("vision_model.", w) | others, tmp_path / "model.safetensors")
    assert max_error(tmp_path / "model.safetensors", hf_clip_forward, w) < 1e-5
    loaded = load_backbone(tmp_path / "model.safetensors")
    assert loaded.mean == CLIP_MEAN
    assert (loaded.config.pre_norm, loaded.config.quick_gelu, loaded.config.patch_bias) == (True, True, False)


def openai_weights(draw: RandomWeights) -> Weights:
    w = {
        "class_embedding": draw(WIDTH),
        "positional_embedding": draw(1 + PATCHES, WIDTH),
        "conv1.weight": draw(WIDTH, 3, PATCH, PATCH),
    }
    for block in (f"transformer.resblocks.{i}." for i in range(DEPTH)):
        w |= {block + "attn.in_proj_weight": draw(3 * WIDTH, WIDTH), block + "attn.in_proj_bias": draw(3 * WIDTH)}
        w |= draw.linear(block + "attn.out_proj", WIDTH, WIDTH) | draw.norm(block + "ln_1") | draw.norm(block + "ln_2")
        w |= draw.linear(block + "mlp.c_fc", WIDTH, MLP) | draw.linear(block + "mlp.c_proj", MLP, WIDTH)
    return w | draw.norm("ln_pre") | draw.norm("ln_post") | {"proj": draw(WIDTH, 8)}


def openai_forward(w: Weights, x: Tensor) -> Tensor:
    h = cut_patches(x) @ w["conv1.weight"].flatten(1).T
    h = torch.cat([repeat_rows(w["class_embedding"], x), h], dim=1) + w["positional_embedding"]
    h = Layer(w, eps=1e-5).norm("ln_pre", h)
    for i in range(DEPTH):
        block = f"transformer.resblocks.{i}."
        layer = Layer(w, block, eps=1e-5)
        qkv = layer.norm("ln_1", h) @ w[block + "attn.in_proj_weight"].T + w[block + "attn.in_proj_bias"]
        h = h + layer("attn.out_proj", attend(*qkv.split(WIDTH, dim=-1)))
        h = h + layer("mlp.c_proj", quick_gelu(layer("mlp.c_fc", layer.norm("ln_2", h))))
    return Layer(w, eps=1e-5).norm("ln_post", h)[:, 0]


def test_openai_clip(tmp_path: Path) -> None:
    w = openai_weights(RandomWeights(7))
    text = {
        "positional_embedding": torch.ones(7, 64),
        "text_projection": torch.ones(64, 8),
        "token_embedding.weight": torch.ones(9, 64),
        "transformer.resblocks.0.ln_1.weight": torch.ones(64),
        "ln_final.weight": torch.ones(64),
        "logit_scale": torch.tensor(4.6),
    }
    torch.save(add_prefix("visual.", w) | text, tmp_path / "clip.pt")
    assert max_error(tmp_path / "clip.pt", openai_forward, w) < 1e-5


# What is rejected, and what shapes do not determine


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("rope.periods", "rotary positions"),
        ("blocks.0.attn.freqs", "rotary positions"),
        ("blocks.0.attn.relative_position_bias_table", "relative position bias"),
        ("rel_pos_bias.relative_position_bias_table", "relative position bias"),
        ("dist_token", "distillation token"),
    ],
)
def test_unsupported_attention_is_rejected(tmp_path: Path, name: str, reason: str) -> None:
    save_file(timm_weights(RandomWeights()) | {name: torch.zeros(3)}, tmp_path / "mine.safetensors")
    with pytest.raises(InputError, match=f"mine.safetensors' cannot be used: .*{reason}.*'{name}'"):
        load_backbone(tmp_path / "mine.safetensors")


def test_only_small_vits_of_moco_have_twelve_heads() -> None:
    small = {"cls_token": torch.zeros(1, 1, 384)}
    assert convert_to_timm({"state_dict": add_prefix("module.base_encoder.", small)}).facts["heads"] == 12
    assert "heads" not in convert_to_timm(small).facts


def test_error_names_tensors_that_disagree(tmp_path: Path) -> None:
    w = hf_vit_weights(RandomWeights())
    key = "encoder.layer.1.attention.attention.key.weight"
    save_file({name: value for name, value in w.items() if name != key}, tmp_path / "less.safetensors")
    with pytest.raises(InputError, match=r"lacks 'blocks.1.attn.key.weight'"):
        load_backbone(tmp_path / "less.safetensors")
    save_file(w | {key: torch.zeros(WIDTH, 64)}, tmp_path / "odd.safetensors")
    with pytest.raises(InputError, match=r"differ in shape: \(128, 128\), \(128, 64\), \(128, 128\)"):
        load_backbone(tmp_path / "odd.safetensors")
    save_file(timm_weights(RandomWeights()) | {"blocks.1.mlp.fc2.bias": torch.zeros(7)}, tmp_path / "timm.safetensors")
    with pytest.raises(InputError, match=r"'blocks.1.mlp.fc2.bias' is \(7,\) in the weights but \(128,\) in this ViT"):
        load_backbone(tmp_path / "timm.safetensors")
    arrays = {name: value.numpy() for name, value in google_weights(RandomWeights()).items()}
    arrays["Transformer/encoderblock_0/MultiHeadDotProductAttention_1/query/bias"] = np.zeros(WIDTH, np.float32)
    np.savez(tmp_path / "flat.npz", **arrays)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="heads must be a separate axis"):
        load_backbone(tmp_path / "flat.npz")


def test_error_names_an_unexpected_tensor(tmp_path: Path) -> None:
    save_file(timm_weights(RandomWeights()) | {"blocks.0.attn.q_norm.weight": torch.ones(64)}, tmp_path / "mine.safetensors")
    with pytest.raises(InputError, match="hold 'blocks.0.attn.q_norm.weight'"):
        load_backbone(tmp_path / "mine.safetensors")


def test_error_names_a_missing_block(tmp_path: Path) -> None:
    w = {name.replace("blocks.1.", "blocks.900000000."): value for name, value in timm_weights(RandomWeights()).items()}
    save_file(w, tmp_path / "mine.safetensors")
    with pytest.raises(InputError, match="lack 'blocks.1.norm1.weight'"):
        load_backbone(tmp_path / "mine.safetensors")
