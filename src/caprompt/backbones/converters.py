"""Conversion of ViT checkpoints in the layouts of other libraries to timm's parameter names.

    converted = convert_to_timm(torch.load("dino_checkpoint.pth", weights_only=True))
    converted.weights["blocks.0.attn.qkv.weight"]
    converted.facts     # what the layout implies: heads, norm_eps, quick_gelu, mean, std

`LAYOUTS` lists the known layouts: each is a table of renamings, and is recognized by a name that no
other layout has. Heads, projections, decoders and text towers are dropped (`DROPPED`); every other
tensor must fit the ViT strictly.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from caprompt.backbones.constants import CLIP_MEAN, CLIP_STD, HALF_MEAN, HALF_STD
from caprompt.backbones.vit import ViTConfig
from caprompt.errors import InputError

__all__ = ["ConvertedCheckpoint", "convert_to_timm", "infer_config"]

MAX_DEPTH = 1000  # blocks
CLIP_FACTS = {"norm_eps": 1e-5, "quick_gelu": True, "mean": CLIP_MEAN, "std": CLIP_STD}

Weights = dict[str, Tensor]
Converter = Callable[[Weights], tuple[Weights, dict[str, Any]]]  # tensors -> tensors, facts
Renamings = tuple[tuple[str, str], ...]  # (pattern of the whole name, timm's name)


@dataclass(frozen=True)
class ConvertedCheckpoint:
    """Weights under timm's names, and what their layout implies beyond their shapes."""

    layout: str
    weights: Mapping[str, Tensor]
    facts: Mapping[str, Any]


UNSUPPORTED = {
    r"rope|freqs": "its attention uses rotary positions (RoPE), which are not supported",
    r"rel_pos|relative_position": "its attention uses a relative position bias, which is not supported",
    r"(^|\.)dist(illation)?_token$": "it has a distillation token, which a plain ViT does not have",
}

# Of several networks in a checkpoint, the one that its authors evaluate: DINO's and iBOT's teacher,
# MoCo v3's base encoder.
WRAPPERS = ("teacher", "state_dict", "model", "model_state_dict", "student")
MAX_WRAPPERS = 8  # levels of wrappers, or prefixes; a file may contain itself
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
    r"|decoder_.*|mask_token|masked_embed|embeddings\.mask_token"  # masked image modeling: MAE, iBOT, DINOv2
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
    (r"vision_model\.pre_layrnorm\.(.*)", r"norm_pre.\1"),  # sic
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


def _convert_google(weights: Weights) -> tuple[Weights, dict[str, Any]]:
    """Convert JAX's axes to torch's.

    Kernels are HWIO, matrices (in, out), and heads a separate axis, which gives their number.

    JAX uses the tanh approximation of GELU. timm computes it exactly, and so do we, since published
    results for these weights in PyTorch come from timm.
    """
    out: Weights = {}
    facts: dict[str, Any] = {"mean": HALF_MEAN, "std": HALF_STD}
    for name, value in weights.items():
        stem, _, kind = name.rpartition(".")
        if stem.endswith(("attn.query", "attn.key", "attn.value")):
            if value.ndim < 2:
                raise InputError(f"'{name}' of this npz is {tuple(value.shape)}; heads must be a separate axis")
            facts["heads"] = value.shape[-2]
            value = value.flatten(-2)  # (D, H, d) -> (D, D); (H, d) -> (D,)
        if kind == "kernel":
            hwio = stem == "patch_embed.proj" and value.ndim == 4
            value = value.permute(3, 2, 0, 1) if hwio else value.reshape(-1, value.shape[-1]).T
        out[f"{stem}.weight" if kind in ("kernel", "scale") else name] = value
    return out, facts


def _only_facts(facts: Mapping[str, Any]) -> Converter:
    """Return the converter of a layout that differs from timm's in its names alone."""
    return lambda weights: (weights, dict(facts))


@dataclass(frozen=True)
class Layout:
    """One kind of checkpoint: its marker, and how its tensors are renamed and converted."""

    name: str
    marker: str  # a pattern that the beginning of some name matches
    renamings: Renamings
    convert: Converter  # of the renamed tensors


# Hugging Face's ViT has its own eps; its image processor normalizes with a mean and standard
# deviation of 0.5.
LAYOUTS = (
    Layout("Google npz", "Transformer/encoderblock_", GOOGLE, _convert_google),
    Layout("Hugging Face CLIP", "vision_model\\.", HF_CLIP, _only_facts(CLIP_FACTS)),
    Layout("OpenAI CLIP", "visual\\.", OPENAI_CLIP, _only_facts(CLIP_FACTS)),
    Layout("Hugging Face DINOv2", BLOCK + "layer_scale", HF_DINOV2, _only_facts({})),
    Layout("Hugging Face ViT", BLOCK, HF_VIT, _only_facts({"norm_eps": 1e-12, "mean": HALF_MEAN, "std": HALF_STD})),
    Layout("timm", "", (), _only_facts({})),
)


def convert_to_timm(checkpoint: Mapping[str, Any]) -> ConvertedCheckpoint:
    """Convert a checkpoint in any known layout to timm's names.

    Tensors of unsupported architectures raise an error; other unknown tensors are kept for the
    strict check of the ViT.
    """
    weights, is_moco = _unwrap(checkpoint)
    for pattern, reason in UNSUPPORTED.items():
        if unsupported := next((name for name in weights if re.search(pattern, name)), None):
            raise InputError(f"{reason} ('{unsupported}')")
    layout = next(layout for layout in LAYOUTS if any(re.match(layout.marker, name) for name in [*weights, ""]))
    weights = {_rename(name, layout.renamings): value for name, value in weights.items() if not DROPPED.fullmatch(name)}
    weights, facts = layout.convert(weights)
    weights = _merge_class_position(_join_qkv(weights))
    for name in ("cls_token", "pos_embed"):
        if name in weights and weights[name].ndim < 3:  # CLIP's (D,) and (N, D)
            weights[name] = weights[name].reshape(1, -1, weights[name].shape[-1])
    if "norm_pre.weight" in weights:
        facts.setdefault("norm_eps", 1e-5)
    if is_moco and weights.get("cls_token", torch.empty(0)).shape[-1] == 384:
        facts["heads"] = 12  # only MoCo v3's ViT-S has heads of 32 channels
    weights = {name: value.float().contiguous() for name, value in weights.items()}
    return ConvertedCheckpoint("MoCo v3" if is_moco else layout.name, weights, facts)


def _unwrap(checkpoint: Mapping[str, Any]) -> tuple[Weights, bool]:
    """Return the tensors of a network in a training checkpoint, and whether it is MoCo v3's.

    Prefixes of what wraps the network are removed from the names.
    """
    for _ in range(MAX_WRAPPERS):
        wrapped = next((checkpoint[key] for key in WRAPPERS if isinstance(checkpoint.get(key), Mapping)), None)
        if wrapped is None:
            break
        checkpoint = wrapped
    else:
        raise InputError("its network is wrapped too deeply; save only its tensors, as .safetensors")
    weights = {str(name): value for name, value in checkpoint.items() if isinstance(value, Tensor)}
    _check_plain(weights)
    is_moco = False
    for _ in range(MAX_WRAPPERS):
        # Keep one network: of MoCo's two encoders and predictor, or of a backbone and its
        # projection head.
        prefix = next((p for p in PREFIXES if any(n.startswith(p) for n in weights) and not _is_network(weights)), None)
        if prefix is None:
            return {name.removeprefix("opt/target/"): value for name, value in weights.items()}, is_moco
        is_moco |= prefix in ("base_encoder.", "momentum_encoder.")
        weights = {name.removeprefix(prefix): value for name, value in weights.items() if name.startswith(prefix)}
    raise InputError("the names of its tensors have too many prefixes; save only its tensors, as .safetensors")


def _check_plain(weights: Mapping[str, Tensor]) -> None:
    """Refuse tensors without ordinary numbers in memory: sparse, quantized or complex ones, or mere shapes."""
    for name, tensor in weights.items():
        ordinary = tensor.layout == torch.strided and tensor.device.type == "cpu" and not tensor.is_nested
        if not ordinary or tensor.is_quantized or tensor.is_complex():
            raise InputError(f"its tensor '{name}' is not an ordinary one; save it as plain numbers, in a .safetensors file")


def _is_network(weights: Mapping[str, Tensor]) -> bool:
    """Return whether names begin as in a known layout, so that no prefix is left to remove."""
    starts = ("cls_token", "patch_embed.", "embeddings.", "vision_model.", "visual.", "cls")
    return any(name == start or (start[-1] == "." and name.startswith(start)) for name in weights for start in starts)


def _rename(name: str, renamings: Renamings) -> str:
    """Return timm's name.

    A name that no renaming matches stays the same, for the strict check to report.
    """
    for pattern, replacement in renamings:
        if match := re.fullmatch(pattern, name):
            return match.expand(replacement)
    return name


def _join_qkv(weights: Weights) -> Weights:
    """Concatenate separate query, key and value tensors to timm's one `qkv`."""
    out = {}
    for name, value in weights.items():
        if ".attn.query." in name:
            parts = [weights.get(name.replace(".query.", f".{part}.")) for part in ("query", "key", "value")]
            missing = next((part for part, tensor in zip(("query", "key", "value"), parts, strict=True) if tensor is None), None)
            if missing is not None:
                raise InputError(f"it lacks '{name.replace('.query.', f'.{missing}.')}'")
            tensors = [tensor for tensor in parts if tensor is not None]
            if len({tensor.shape for tensor in tensors}) > 1:
                shapes = ", ".join(str(tuple(tensor.shape)) for tensor in tensors)
                raise InputError(f"'{name}' and its key and value differ in shape: {shapes}")
            out[name.replace(".query.", ".qkv.")] = torch.cat(tensors)
        elif ".attn.key." not in name and ".attn.value." not in name:
            out[name] = value
    return out


def _merge_class_position(weights: Weights) -> Weights:
    """Add the class token's position to the token if there are DINOv2 registers, as timm does."""
    if "register_tokens" not in weights or not {"cls_token", "pos_embed"} <= weights.keys():
        return weights
    out = {name: value for name, value in weights.items() if name != "register_tokens"}
    out["reg_token"] = weights["register_tokens"]
    out["cls_token"] = weights["cls_token"] + weights["pos_embed"][:, :1]
    out["pos_embed"] = weights["pos_embed"][:, 1:]
    return out


def infer_config(weights: Mapping[str, Tensor], facts: Mapping[str, Any]) -> ViTConfig:
    """Infer the architecture from a state dict.

    Without `facts["heads"]`, heads of 64 channels as in all of timm's plain ViTs.
    """
    width, _, patch, _ = weights["patch_embed.proj.weight"].shape
    positions = weights["pos_embed"].shape[1]
    # The number of positions is a square only if the class token has none; a single position is the
    # class token's.
    class_position = positions < 2 or math.isqrt(positions) ** 2 != positions
    heads = int(facts.get("heads", width // 64))
    depth = len({name.split(".")[1] for name in weights if name.startswith("blocks.")})
    if patch < 1:
        raise ValueError("its patches have no pixels")
    if positions - class_position < 1:
        raise ValueError("it has no positions of patches")
    if depth > MAX_DEPTH:
        raise ValueError(f"it has {depth} blocks")
    if heads < 1 or width % heads:
        raise ValueError(f"a width of {width} cannot be split into {heads} heads")
    return ViTConfig(
        image_size=math.isqrt(positions - class_position) * patch,
        patch_size=patch,
        width=width,
        depth=depth,
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
