"""Checkpoints of plain ViTs as others write them -> timm's parameter names, and what the layout tells of the network.

    converted = convert_to_timm(torch.load("dino_checkpoint.pth", weights_only=True))
    converted.weights["blocks.0.attn.qkv.weight"], converted.facts      # facts: heads, norm_eps, quick_gelu, mean, std

Each layout is a table of renamings, `LAYOUTS`, found by a name that only it has. Heads, projections, decoders and text
towers are left out by `DROPPED`; every other tensor keeps its place and must fit the ViT strictly.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from caprompt.backbones.constants import CLIP_MEAN, CLIP_STD, HALF
from caprompt.backbones.vit import ViTConfig
from caprompt.errors import InputError

__all__ = ["Converted", "convert_to_timm", "infer_config"]

CLIP_FACTS = {"norm_eps": 1e-5, "quick_gelu": True, "mean": CLIP_MEAN, "std": CLIP_STD}

Weights = dict[str, Tensor]
Renamings = tuple[tuple[str, str], ...]  # (pattern of the whole name, what timm calls it)


@dataclass(frozen=True)
class Converted:
    """Weights in timm's names, and what the layout they came in says of the network beyond their shapes."""

    layout: str
    weights: Mapping[str, Tensor]
    facts: Mapping[str, Any]


REFUSED = {
    r"rope|freqs": "its attention uses rotary positions (RoPE), which are not reproduced here",
    r"rel_pos|relative_position": "its attention uses a relative position bias, which is not reproduced here",
    r"(^|\.)dist(illation)?_token$": "it has a distillation token, which a plain ViT does not have",
}

# Of several networks in one checkpoint the one its authors evaluate: DINO's and iBOT's teacher, MoCo v3's base encoder.
WRAPPERS = ("teacher", "state_dict", "model", "model_state_dict", "student")
PREFIXES = (
    "module.",
    "_orig_mod.",
    "base_encoder.",
    "momentum_encoder.",
    "backbone.",
    "encoder.",
    "vit.",
    "dinov2.",
    "dinov2_with_registers.",
    "deit.",
)

DROPPED = re.compile(
    r"(head|heads|head_dist|fc_head|pre_logits|classifier|cls_classifier|distillation_classifier|decoder|predictor|pooler)[./].*"
    r"|decoder_.*|mask_token|masked_embed|embeddings\.mask_token"  # masked image modelling: MAE, iBOT, DINOv2
    r"|(text_model|visual_projection|text_projection|transformer|token_embedding|ln_final)\..*"  # CLIP's text tower and projections
    r"|visual\.proj|logit_scale|logit_bias|positional_embedding|attn_mask|text_projection"
    r"|input_resolution|context_length|vocab_size|(.*\.)?position_ids"
)

BLOCK = r"encoder\.layer\.(\d+)\."
HF_COMMON: Renamings = (
    (r"embeddings\.cls_token", "cls_token"),
    (r"embeddings\.register_tokens", "register_tokens"),
    (r"embeddings\.position_embeddings", "pos_embed"),
    (r"embeddings\.patch_embeddings\.projection\.(.*)", r"patch_embed.proj.\1"),
    (BLOCK + r"attention\.attention\.(query|key|value)\.(.*)", r"blocks.\1.attn.\2.\3"),
    (BLOCK + r"attention\.output\.dense\.(.*)", r"blocks.\1.attn.proj.\2"),
    (r"layernorm\.(.*)", r"norm.\1"),
)
HF_VIT: Renamings = (
    *HF_COMMON,
    (BLOCK + r"layernorm_before\.(.*)", r"blocks.\1.norm1.\2"),
    (BLOCK + r"layernorm_after\.(.*)", r"blocks.\1.norm2.\2"),
    (BLOCK + r"intermediate\.dense\.(.*)", r"blocks.\1.mlp.fc1.\2"),
    (BLOCK + r"output\.dense\.(.*)", r"blocks.\1.mlp.fc2.\2"),
)
HF_DINOV2: Renamings = (
    *HF_COMMON,
    (BLOCK + r"layer_scale(\d)\.lambda1", r"blocks.\1.ls\2.gamma"),
    (BLOCK + r"(norm1|norm2|mlp\.fc1|mlp\.fc2)\.(.*)", r"blocks.\1.\2.\3"),
)
CLIP_BLOCK = r"vision_model\.encoder\.layers\.(\d+)\."
HF_CLIP: Renamings = (
    (r"vision_model\.embeddings\.class_embedding", "cls_token"),
    (r"vision_model\.embeddings\.position_embedding\.weight", "pos_embed"),
    (r"vision_model\.embeddings\.patch_embedding\.(.*)", r"patch_embed.proj.\1"),
    (r"vision_model\.pre_layrnorm\.(.*)", r"norm_pre.\1"),  # their spelling
    (r"vision_model\.post_layernorm\.(.*)", r"norm.\1"),
    (CLIP_BLOCK + r"layer_norm(\d)\.(.*)", r"blocks.\1.norm\2.\3"),
    (CLIP_BLOCK + r"self_attn\.q_proj\.(.*)", r"blocks.\1.attn.query.\2"),
    (CLIP_BLOCK + r"self_attn\.k_proj\.(.*)", r"blocks.\1.attn.key.\2"),
    (CLIP_BLOCK + r"self_attn\.v_proj\.(.*)", r"blocks.\1.attn.value.\2"),
    (CLIP_BLOCK + r"self_attn\.out_proj\.(.*)", r"blocks.\1.attn.proj.\2"),
    (CLIP_BLOCK + r"(mlp\.fc\d)\.(.*)", r"blocks.\1.\2.\3"),
)
OPENAI_BLOCK = r"visual\.transformer\.resblocks\.(\d+)\."
OPENAI_CLIP: Renamings = (
    (r"visual\.class_embedding", "cls_token"),
    (r"visual\.positional_embedding", "pos_embed"),
    (r"visual\.conv1\.(.*)", r"patch_embed.proj.\1"),
    (r"visual\.ln_pre\.(.*)", r"norm_pre.\1"),
    (r"visual\.ln_post\.(.*)", r"norm.\1"),
    (OPENAI_BLOCK + r"ln_(\d)\.(.*)", r"blocks.\1.norm\2.\3"),
    (OPENAI_BLOCK + r"attn\.in_proj_(.*)", r"blocks.\1.attn.qkv.\2"),
    (OPENAI_BLOCK + r"attn\.out_proj\.(.*)", r"blocks.\1.attn.proj.\2"),
    (OPENAI_BLOCK + r"mlp\.c_fc\.(.*)", r"blocks.\1.mlp.fc1.\2"),
    (OPENAI_BLOCK + r"mlp\.c_proj\.(.*)", r"blocks.\1.mlp.fc2.\2"),
)
GOOGLE_BLOCK = r"Transformer/encoderblock_(\d+)/"
GOOGLE: Renamings = (
    (r"cls", "cls_token"),
    (r"Transformer/posembed_input/pos_embedding", "pos_embed"),
    (r"embedding/(.*)", r"patch_embed.proj.\1"),
    (r"Transformer/encoder_norm/(.*)", r"norm.\1"),
    (GOOGLE_BLOCK + r"LayerNorm_0/(.*)", r"blocks.\1.norm1.\2"),
    (GOOGLE_BLOCK + r"LayerNorm_2/(.*)", r"blocks.\1.norm2.\2"),
    (GOOGLE_BLOCK + r"MultiHeadDotProductAttention_1/(query|key|value)/(.*)", r"blocks.\1.attn.\2.\3"),
    (GOOGLE_BLOCK + r"MultiHeadDotProductAttention_1/out/(.*)", r"blocks.\1.attn.proj.\2"),
    (GOOGLE_BLOCK + r"MlpBlock_3/Dense_0/(.*)", r"blocks.\1.mlp.fc1.\2"),
    (GOOGLE_BLOCK + r"MlpBlock_3/Dense_1/(.*)", r"blocks.\1.mlp.fc2.\2"),
)


def google_tensors(weights: Weights) -> tuple[Weights, dict[str, Any]]:
    """JAX's axes -> torch's: HWIO pictures, (in, out) matrices, heads as an axis of their own, which tells their number.

    JAX computes GELU by its tanh approximation; timm, and everyone who reports on these weights with it, exactly. So do we.
    """
    out: Weights = {}
    facts: dict[str, Any] = {"mean": HALF, "std": HALF}
    for name, value in weights.items():
        stem, _, kind = name.rpartition(".")
        if stem.endswith(("attn.query", "attn.key", "attn.value")):
            if value.ndim < 2:
                raise InputError(f"'{name}' of this npz is {tuple(value.shape)}; heads should be an axis of their own")
            facts["heads"] = value.shape[-2]
            value = value.flatten(-2)  # (D, H, d) -> (D, D); (H, d) -> (D,)
        if kind == "kernel":
            hwio = stem == "patch_embed.proj" and value.ndim == 4
            value = value.permute(3, 2, 0, 1) if hwio else value.reshape(-1, value.shape[-1]).T
        out[f"{stem}.weight" if kind in ("kernel", "scale") else name] = value
    return out, facts


def plain_facts(facts: Mapping[str, Any]) -> Callable[[Weights], tuple[Weights, dict[str, Any]]]:
    """For layouts that differ by their names alone."""
    return lambda weights: (weights, dict(facts))


@dataclass(frozen=True)
class Layout:
    """How one kind of checkpoint is known, renamed and turned."""

    name: str
    known_by: str  # a pattern that some name matches from its beginning
    renamings: Renamings
    turn: Callable[[Weights], tuple[Weights, dict[str, Any]]]


# Hugging Face's ViT has its own eps and, as its image processor does, a mean and deviation of one half.
LAYOUTS = (
    Layout("Google npz", "Transformer/encoderblock_", GOOGLE, google_tensors),
    Layout("Hugging Face CLIP", "vision_model\\.", HF_CLIP, plain_facts(CLIP_FACTS)),
    Layout("OpenAI CLIP", "visual\\.", OPENAI_CLIP, plain_facts(CLIP_FACTS)),
    Layout("Hugging Face DINOv2", BLOCK + "layer_scale", HF_DINOV2, plain_facts({})),
    Layout("Hugging Face ViT", BLOCK, HF_VIT, plain_facts({"norm_eps": 1e-12, "mean": HALF, "std": HALF})),
    Layout("timm", "", (), plain_facts({})),
)


def convert_to_timm(checkpoint: Mapping[str, Any]) -> Converted:
    """A checkpoint in any known layout, in timm's names; what is not a plain ViT's is refused or kept for the strict check."""
    weights, moco = unwrapped(checkpoint)
    for pattern, reason in REFUSED.items():
        if found := next((name for name in weights if re.search(pattern, name)), None):
            raise InputError(f"{reason} ('{found}')")
    layout = next(each for each in LAYOUTS if any(re.match(each.known_by, name) for name in [*weights, ""]))
    kept = {name: value for name, value in weights.items() if not DROPPED.fullmatch(name)}
    turned, facts = layout.turn({renamed(name, layout.renamings): value for name, value in kept.items()})
    turned = registers_without_position(join_qkv(turned))
    for name in ("cls_token", "pos_embed"):
        if name in turned and turned[name].ndim < 3:  # CLIP's (D,) and (N, D)
            turned[name] = turned[name].reshape(1, -1, turned[name].shape[-1])
    if "norm_pre.weight" in turned:
        facts.setdefault("norm_eps", 1e-5)
    if moco and turned.get("cls_token", torch.empty(0)).shape[-1] == 384:
        facts["heads"] = 12  # MoCo v3's ViT-S alone has heads of 32
    plain = {name: value.float().contiguous() for name, value in turned.items()}
    return Converted("MoCo v3" if moco else layout.name, plain, facts)


def unwrapped(checkpoint: Mapping[str, Any]) -> tuple[Weights, bool]:
    """The tensors inside a training checkpoint, without the prefixes of what wrapped the network; and is it MoCo v3's?"""
    while (wrapped := next((checkpoint[key] for key in WRAPPERS if isinstance(checkpoint.get(key), Mapping)), None)) is not None:
        checkpoint = wrapped
    weights = {str(name): value for name, value in checkpoint.items() if isinstance(value, Tensor)}
    moco = False
    while True:
        # Of MoCo's encoders and heads, and of a backbone beside its projection head, one part goes on.
        prefix = next((p for p in PREFIXES if any(n.startswith(p) for n in weights) and not is_network(weights)), None)
        if prefix is None:
            return {name.removeprefix("opt/target/"): value for name, value in weights.items()}, moco
        moco |= prefix in ("base_encoder.", "momentum_encoder.")
        weights = {name.removeprefix(prefix): value for name, value in weights.items() if name.startswith(prefix)}


def is_network(weights: Mapping[str, Tensor]) -> bool:
    """Do these names begin where a network's own names begin?"""
    begins = ("cls_token", "patch_embed.", "embeddings.", "vision_model.", "visual.", "cls")
    return any(name == start or (start[-1] == "." and name.startswith(start)) for name in weights for start in begins)


def renamed(name: str, renamings: Renamings) -> str:
    """What timm calls it; a name that no renaming knows stays and is met by the strict check."""
    for pattern, replacement in renamings:
        if match := re.fullmatch(pattern, name):
            return match.expand(replacement)
    return name


def join_qkv(weights: Weights) -> Weights:
    """Queries, keys and values that come apart, as timm's one matrix."""
    out = {}
    for name, value in weights.items():
        if ".attn.query." in name:
            parts = [weights.get(name.replace(".query.", f".{part}.")) for part in ("query", "key", "value")]
            lacking = next((part for part, tensor in zip(("query", "key", "value"), parts, strict=True) if tensor is None), None)
            if lacking is not None:
                raise InputError(f"it lacks '{name.replace('.query.', f'.{lacking}.')}'")
            given = [tensor for tensor in parts if tensor is not None]
            if len({tensor.shape for tensor in given}) > 1:
                shapes = ", ".join(str(tuple(tensor.shape)) for tensor in given)
                raise InputError(f"'{name}' and its key and value differ in shape: {shapes}")
            out[name.replace(".query.", ".qkv.")] = torch.cat(given)
        elif ".attn.key." not in name and ".attn.value." not in name:
            out[name] = value
    return out


def registers_without_position(weights: Weights) -> Weights:
    """DINOv2's own register checkpoints: as timm does, the class token takes its position in, and the rest are the patches'."""
    if "register_tokens" not in weights or not {"cls_token", "pos_embed"} <= weights.keys():
        return weights
    out = {name: value for name, value in weights.items() if name != "register_tokens"}
    out["reg_token"] = weights["register_tokens"]
    out["cls_token"] = weights["cls_token"] + weights["pos_embed"][:, :1]
    out["pos_embed"] = weights["pos_embed"][:, 1:]
    return out


def infer_config(weights: Mapping[str, Tensor], facts: Mapping[str, Any]) -> ViTConfig:
    """The architecture that a state dict has; timm's plain ViTs all have heads of 64."""
    width, _, patch, _ = weights["patch_embed.proj.weight"].shape
    positions = weights["pos_embed"].shape[1]
    # Only without a row for the class token is their number a square; one position is the class token's and no patch.
    class_position = positions < 2 or math.isqrt(positions) ** 2 != positions
    heads = int(facts.get("heads", width // 64))
    if patch < 1:
        raise ValueError("its patches have no pixels")
    if heads < 1 or width % heads:
        raise ValueError(f"a width of {width} cannot be split into {heads} heads")
    return ViTConfig(
        image_size=math.isqrt(positions - class_position) * patch,
        patch_size=patch,
        width=width,
        depth=len({name.split(".")[1] for name in weights if name.startswith("blocks.")}),
        heads=heads,
        mlp_width=weights["blocks.0.mlp.fc1.weight"].shape[0],
        norm_eps=float(facts.get("norm_eps", 1e-6)),
        layer_scale="blocks.0.ls1.gamma" in weights,
        registers=weights["reg_token"].shape[1] if "reg_token" in weights else 0,
        class_position=class_position,
        pre_norm="norm_pre.weight" in weights,
        quick_gelu=bool(facts.get("quick_gelu", False)),
        patch_bias="patch_embed.proj.bias" in weights,
    )
