"""The vision transformer: plain, pre-norm, with timm's parameter names.

It is the only one in the package. Methods neither copy nor subclass it; they pass `forward` an
`Adaptation`, whose hooks change nothing by default:

    features = vit(images)                        # (B, D), the class token after the last norm
    features = vit(images, adaptation)            # the same network, adapted per image
    stem = vit.stem(images)                       # what several passes over the same images share
    features = vit(stem, adaptation)

Weights may be bfloat16 or float16; features are float32 nevertheless.

Shapes: B images, N tokens (class token, registers, patches), D width, H heads of d = D / H.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from caprompt.backbones.attention import Attention
from caprompt.backbones.fused_block import can_fuse, run_fused_blocks
from caprompt.backbones.layers import Norm, compact_gelu, linear, linear_gelu
from caprompt.errors import InputError
from caprompt.utils.devices import has_float8
from caprompt.utils.threads import count_workers, is_worker, map_parts, split_evenly

__all__ = ["NO_ADAPTATION", "Adaptation", "Place", "Stem", "ViT", "ViTConfig", "modulate"]


@dataclass(frozen=True)
class ViTConfig:
    """The architecture of a plain ViT. The switches at the end cover DINOv2 and CLIP."""

    image_size: int
    patch_size: int
    width: int
    depth: int
    heads: int
    mlp_width: int
    norm_eps: float = 1e-6
    layer_scale: bool = False  # a learned factor per channel after attention and MLP (DINOv2)
    registers: int = 0  # further tokens between the class token and the patches (DINOv2 with registers)
    class_position: bool = True  # the position embedding has a row for the class token; timm's `not no_embed_class`
    pre_norm: bool = False  # a norm before the first block (CLIP)
    quick_gelu: bool = False  # x * sigmoid(1.702 x) instead of the exact GELU (OpenAI's CLIP)
    patch_bias: bool = True

    @property
    def grid(self) -> int:
        """The number of patches along one side of an image."""
        return self.image_size // self.patch_size


Place = Literal["attention_input", "attention_output", "mlp_input", "mlp_output"]


class Adaptation:
    """Hooks by which a method changes a forward pass; they change nothing by default.

    `x` is a block's input before its norm, (B, N, D), if a hook does not say otherwise. It has the
    dtype of the weights; trained float32 parameters that multiply it are cast with `.to(x.dtype)`.
    The ViT casts what a hook returns. Hooks must act on each token separately: in the last block,
    `mlp` receives the class token alone.
    """

    def tokens(self, layer: int, x: Tensor) -> Tensor | None:
        """Return tokens (B, n, D) to put in front of this block's input.

        They remain for the blocks after it.
        """
        return None

    @property
    def puts_tokens_in_front(self) -> bool:
        """Whether `tokens` may return any."""
        return type(self).tokens is not Adaptation.tokens

    def prefix(self, layer: int, x: Tensor) -> tuple[Tensor, Tensor] | None:
        """Return keys and values, each (B, n, D), to put in front of this block's own."""
        return None

    def count_prefix_rows(self, layer: int) -> int | None:
        """Return the n of `prefix`, 0 for none, or None if that is not known before it is called."""
        return 0 if type(self).prefix is Adaptation.prefix else None

    def qkv(self, layer: int, x: Tensor) -> Tensor | None:
        """Return a delta (B, N, 3 D) to add to this block's queries, keys and values.

        Here `x` is the normalized input.
        """
        return None

    def mlp(self, layer: int, x: Tensor) -> Tensor | None:
        """Return the output (B, N, D) of a branch to add to the output of the MLP.

        Here `x` is the input of the MLP before its norm.
        """
        return None

    def modulation(self, layer: int, place: Place) -> tuple[Tensor, Tensor] | None:
        """Return a scale s and a shift t, (B, 1, D) each: the input or output x of this block's attention or MLP is x + s x + t.

        Inputs are normalized.
        """
        return None

    def select(self, images: slice) -> Adaptation | None:
        """Return the adaptation for some images of the batch, or None, for whichever images, if it cannot be divided."""
        return self if type(self) is Adaptation else None


NO_ADAPTATION = Adaptation()


class PatchEmbed(nn.Module):
    """Map of non-overlapping patches to tokens: a convolution, computed as one matmul."""

    def __init__(self, config: ViTConfig) -> None:
        super().__init__()
        self.proj = nn.Conv2d(3, config.width, config.patch_size, stride=config.patch_size, bias=config.patch_bias)

    def forward(self, images: Tensor) -> Tensor:
        side = self.proj.kernel_size[0]
        patches = images.unflatten(3, (-1, side)).unflatten(2, (-1, side))  # (B, 3, rows, side, columns, side)
        patches = patches.permute(0, 2, 4, 1, 3, 5).flatten(3).flatten(1, 2)  # (B, rows * columns, 3 side side)
        return F.linear(patches, self.proj.weight.flatten(1), self.proj.bias)


class Mlp(nn.Module):
    """Two linear maps with a GELU between them."""

    compact = False  # store the GELU's derivative as uint8; worthwhile only in fused (compiled) kernels

    def __init__(self, config: ViTConfig) -> None:
        super().__init__()
        self.quick = config.quick_gelu
        self.fc1 = nn.Linear(config.width, config.mlp_width)
        self.fc2 = nn.Linear(config.mlp_width, config.width)

    def forward(self, x: Tensor) -> Tensor:
        return linear(self.fc2, self._hidden(x))

    def _hidden(self, x: Tensor) -> Tensor:
        """Apply the first linear map and the GELU: (B, N, D) -> (B, N, M)."""
        if (
            x.is_cuda
            and x.dtype in (torch.bfloat16, torch.float16)
            and not (torch.is_grad_enabled() or self.quick)
            and isinstance(self.fc1, nn.Linear)
        ):
            return linear_gelu(x, self.fc1.weight, self.fc1.bias)
        if self.compact and not self.quick and type(self.fc1) is nn.Linear and not self.fc1.bias.requires_grad:
            return compact_gelu(F.linear(x, self.fc1.weight), self.fc1.bias)
        hidden: Tensor = self.fc1(x)
        if self.quick:
            return hidden * torch.sigmoid(1.702 * hidden)
        return compact_gelu(hidden) if self.compact else F.gelu(hidden)


class LayerScale(nn.Module):
    """A learned factor per channel."""

    def __init__(self, config: ViTConfig) -> None:
        super().__init__()
        self.gamma = nn.Parameter(torch.ones(config.width))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.gamma


class Block(nn.Module):
    """One pre-norm transformer block: attention and MLP, each with a residual connection."""

    def __init__(self, config: ViTConfig, layer: int) -> None:
        super().__init__()
        self.layer = layer
        self.norm1 = Norm(config.width, eps=config.norm_eps)
        self.attn = Attention(config.width, config.heads)
        self.ls1 = LayerScale(config) if config.layer_scale else nn.Identity()
        self.norm2 = Norm(config.width, eps=config.norm_eps)
        self.mlp = Mlp(config)
        self.ls2 = LayerScale(config) if config.layer_scale else nn.Identity()

    def forward(self, x: Tensor, adaptation: Adaptation, stem: Stem | None = None, index: int | None = None) -> Tensor:
        """Return all tokens, (B, N, D), or only the one at a (negative) `index`, (B, 1, D).

        A `stem` holds the results of this block's first norm and projection.
        """
        rows = adaptation.tokens(self.layer, x)
        if rows is not None:
            x, stem = torch.cat([rows.to(x.dtype), x], dim=1), None  # (B, n + N, D)
        apply_modulation = partial(modulate, adaptation, self.layer)
        normed, qkv = (self.norm1(x), None) if stem is None or stem.first is None else stem.first
        modulated = apply_modulation("attention_input", normed)
        if modulated is not normed:
            normed, qkv = modulated, None  # the stem's projection is that of the unchanged input
        delta, prefix = adaptation.qkv(self.layer, normed), adaptation.prefix(self.layer, x)
        x = x if index is None else x[:, index].unsqueeze(1)
        x = x + self.ls1(apply_modulation("attention_output", self.attn(normed, prefix, delta, index, qkv=qkv)))
        branch = adaptation.mlp(self.layer, x)
        x = x + self.ls2(apply_modulation("mlp_output", self.mlp(apply_modulation("mlp_input", self.norm2(x)))))
        return x if branch is None else x + branch.to(x.dtype)


def modulate(adaptation: Adaptation, layer: int, place: Place, x: Tensor) -> Tensor:
    """Apply a block's scale and shift to x, (B, N, D); x itself if there are none."""
    pair = adaptation.modulation(layer, place)
    return x if pair is None else torch.addcmul(x + pair[1], x, pair[0])


@dataclass(frozen=True)
class Stem:
    """The part of a forward pass that no adaptation changes, up to the first projection.

    Computed once, it serves several passes over the same images.
    """

    tokens: Tensor  # (B, N, D)
    first: tuple[Tensor, Tensor] | None  # the first block's norm, (B, N, D), and its queries, keys and values, (B, N, 3 D)
    patches: int  # per image
    times: int = 1  # how often the batch is repeated

    def repeat(self, times: int) -> Stem:
        """Return the same batch several times over.

        It is copied only when the blocks start (`materialize`).
        """
        return replace(self, times=self.times * times)

    def materialize(self) -> Stem:
        """Copy the repeated batch: `times` becomes 1, B becomes B * times."""
        if self.times == 1:
            return self
        return self._map(lambda part: part.repeat(self.times, 1, 1))

    def select(self, rows: Tensor | slice) -> Stem:
        """Return some of the images, by their indices."""
        return self.materialize()._map(lambda part: part[rows])

    @staticmethod
    def join(parts: Sequence[Stem]) -> Stem:
        """Return the images of several stems as one."""
        first = [part.first for part in parts if part.first is not None]
        joined = (torch.cat([each[0] for each in first]), torch.cat([each[1] for each in first])) if first else None
        return Stem(torch.cat([part.tokens for part in parts]), joined, parts[0].patches)

    def _map(self, function: Callable[[Tensor], Tensor]) -> Stem:
        """Apply a function of a batch to all parts."""
        first = None if self.first is None else (function(self.first[0]), function(self.first[1]))
        return Stem(function(self.tokens), first, self.patches)


def select_images(images: Tensor | Stem, rows: slice) -> Tensor | Stem:
    """Return some images of a batch, or of the stem of one."""
    return images.select(rows) if isinstance(images, Stem) else images[rows]


COMPILED_METHODS = ("run_stem", "run_blocks")  # the methods that `set_compiled` compiles
IMAGES_OF_THREAD = 24  # that a thread computes at once on a CPU, about
# A sum that two kernels read is stored once instead of being computed again in each.
COMPILE_OPTIONS: dict[str, Any] = {"realize_reads_threshold": 1}


class ViT(nn.Module):
    """Plain vision transformer; `load_weights` loads pre-trained weights."""

    recompute = False  # activation checkpointing: save only each block's input for backward

    def __init__(self, config: ViTConfig) -> None:
        super().__init__()
        self.config = config
        self.cls_token = nn.Parameter(torch.zeros(1, 1, config.width))
        if config.registers:
            self.reg_token = nn.Parameter(torch.zeros(1, config.registers, config.width))
        self.pos_embed = nn.Parameter(torch.zeros(1, config.class_position + config.grid**2, config.width))
        self.patch_embed = PatchEmbed(config)
        self.norm_pre = nn.LayerNorm(config.width, eps=config.norm_eps) if config.pre_norm else nn.Identity()
        self.blocks = nn.ModuleList(Block(config, layer) for layer in range(config.depth))
        self.norm = nn.LayerNorm(config.width, eps=config.norm_eps)

    def forward(self, images: Tensor | Stem, adaptation: Adaptation = NO_ADAPTATION, num_blocks: int = 1) -> Tensor:
        """Return class-token features: (B, 3, height, width), or a stem -> (B, D).

        With `num_blocks`, those after each of that many last blocks, side by side, all with the last norm: (B, num_blocks D).
        """
        return self.apply_final_norm(self.forward_class_tokens(images, adaptation, num_blocks)).flatten(1)

    def forward_class_token(self, images: Tensor | Stem, adaptation: Adaptation = NO_ADAPTATION) -> Tensor:
        """Return the class token before the last norm, in the dtype of the weights: (B, D)."""
        return self.forward_class_tokens(images, adaptation, 1)[:, 0]

    def forward_class_tokens(self, images: Tensor | Stem, adaptation: Adaptation, num_blocks: int) -> Tensor:
        """Return the class token after each of the last blocks, before the last norm: (B, num_blocks, D)."""
        slices = self.divide(images)
        adaptations = [own for own in map(adaptation.select, slices) if own is not None]
        if not slices or len(adaptations) < len(slices):
            return self._compute_class_tokens(images, adaptation, num_blocks)
        parts = [(select_images(images, each), own) for each, own in zip(slices, adaptations, strict=True)]
        return torch.cat(map_parts(lambda part: self._compute_class_tokens(*part, num_blocks), parts))

    def _compute_class_tokens(self, images: Tensor | Stem, adaptation: Adaptation, num_blocks: int) -> Tensor:
        """Return the class tokens of images, (B, num_blocks, D), which go through the blocks as one batch."""
        stem = images if isinstance(images, Stem) else self.stem(images)
        # Only the class token is used, so the last block need not compute the others. Its index is
        # counted from the end, since `tokens` hooks put tokens in front of it.
        index = -stem.patches - self.config.registers - 1
        # The fused blocks need no compiler; a compiled network is for training.
        run_blocks = partial(ViT.run_blocks, self) if can_fuse(stem.tokens) else self.run_blocks
        return run_blocks(stem, adaptation, index=index, num_blocks=num_blocks)

    def map_images(self, function: Callable[..., Tensor], images: Tensor, *others: Tensor) -> Tensor:
        """Apply a function of some images, and of what else belongs to each, to a batch, or to the parts into which it falls."""
        slices = self.divide(images)
        if not slices:
            return function(images, *others)
        return torch.cat(map_parts(lambda part: function(*(each[part] for each in (images, *others))), slices))

    def divide(self, images: Tensor | Stem) -> list[slice]:
        """Return parts of a batch that different threads compute; none if one computes all, as everywhere but on CPUs."""
        batch, times = (images.tokens, images.times) if isinstance(images, Stem) else (images, 1)
        workers = 1 if is_worker() else count_workers()
        if workers == 1 or batch.device.type != "cpu" or torch.is_grad_enabled() or self.is_compiled:
            return []
        if type(batch) is not Tensor:
            return []  # the tensors with which a graph is exported have no values to divide
        rounds = max(1, round(times * len(batch) / (IMAGES_OF_THREAD * workers)))
        slices = split_evenly(times * len(batch), rounds * workers)
        return slices if len(slices) > 1 else []

    def encode(self, images: Tensor | Stem, adaptation: Adaptation = NO_ADAPTATION) -> Tensor:
        """Return all tokens after the last norm: (B, 3, height, width), or a stem -> (B, N, D)."""
        stem = images if isinstance(images, Stem) else self.stem(images)
        return self.apply_final_norm(self.run_blocks(stem, adaptation, index=None))

    def stem(self, images: Tensor) -> Stem:
        """Compute the stem of images (B, 3, height, width)."""
        slices = self.divide(images)
        if slices:
            return Stem.join(map_parts(lambda part: self._compute_stem(images[part]), slices))
        return self._compute_stem(images)

    def _compute_stem(self, images: Tensor) -> Stem:
        """Compute the stem of images (B, 3, height, width) as one batch."""
        patches = (images.shape[2] // self.config.patch_size) * (images.shape[3] // self.config.patch_size)
        if can_fuse(self.cls_token):  # a fused block has no use for parts of itself
            return Stem(self.run_embedding(images), None, patches)
        tokens, *first = self.run_stem(images)
        return Stem(tokens, (first[0], first[1]), patches)

    def run_stem(self, images: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return tokens, normalized tokens, (B, N, D) each, and their projection, (B, N, 3 D)."""
        x = self.run_embedding(images)
        first: Block = self.blocks[0]  # type: ignore[assignment]
        normed = first.norm1(x)
        return x, normed, first.attn.qkv(normed)

    def run_embedding(self, images: Tensor) -> Tensor:
        """Return the tokens that enter the first block: (B, 3, height, width) -> (B, N, D)."""
        tokens: Tensor = self.norm_pre(self.embed(images.to(self.cls_token.dtype)))
        return tokens

    def run_blocks(self, stem: Stem, adaptation: Adaptation, index: int | None, num_blocks: int = 1) -> Tensor:
        """Apply all blocks, and return the tokens, (B, N, D).

        With an `index`, return that token after each of the last blocks, (B, num_blocks, D); the last one computes it alone.
        """
        stem, last = stem.materialize(), len(self.blocks) - 1
        if can_fuse(stem.tokens) and self.has_plain_layers:
            x, kept = run_fused_blocks(self.blocks, stem.tokens, adaptation, index, num_blocks)
            return torch.cat([*kept, x], dim=1) if kept else x
        x, kept = stem.tokens, []
        for layer, block in enumerate(self.blocks):
            call = partial(block, adaptation=adaptation, stem=stem if layer == 0 else None, index=index if layer == last else None)
            if self.recompute and torch.is_grad_enabled():
                # Nothing in a block is random, and the RNG state cannot be saved while a CUDA graph
                # is captured.
                x = checkpoint(call, x, use_reentrant=False, preserve_rng_state=False)
            else:
                x = call(x)
            if index is not None and last - num_blocks < layer < last:
                kept.append(x[:, index].unsqueeze(1))
        return torch.cat([*kept, x], dim=1) if kept else x

    @property
    def has_plain_layers(self) -> bool:
        """Whether the linear layers of the blocks are PyTorch's own, and not, say, of eight bits."""
        first: Block = self.blocks[0]  # type: ignore[assignment]
        return all(type(layer) is nn.Linear for layer in (first.attn.qkv, first.attn.proj, first.mlp.fc1, first.mlp.fc2))

    @property
    def is_compiled(self) -> bool:
        """Whether torch.compile is enabled."""
        return COMPILED_METHODS[0] in vars(self)

    def set_compiled(self, enabled: bool) -> None:
        """Enable or disable torch.compile; it is worthwhile for many batches of the same size."""
        if enabled == self.is_compiled:
            return
        if enabled:
            renamed = hasattr(torch._dynamo.config, "recompile_limit")  # since torch 2.7
            # one compilation per shape, with and without gradients
            setattr(torch._dynamo.config, "recompile_limit" if renamed else "cache_size_limit", 64)
            for name in COMPILED_METHODS:
                setattr(self, name, torch.compile(getattr(self, name), dynamic=False, options=COMPILE_OPTIONS))
        else:
            for name in COMPILED_METHODS:
                delattr(self, name)
        float8_norms = not self.cls_token.is_cuda or has_float8(self.cls_token.device)  # a CPU can store any dtype
        for module in self.blocks.modules():
            if isinstance(module, (Mlp, Norm)):
                module.compact = enabled and (float8_norms or isinstance(module, Mlp))

    def copy_uncompiled(self) -> ViT:
        """Return a deep copy that is not compiled: compiled methods stay bound to the original."""
        duplicate = copy.deepcopy(self)
        duplicate.set_compiled(False)
        return duplicate

    def apply_final_norm(self, x: Tensor) -> Tensor:
        """Apply the norm after the last block, in float32 or wider."""
        dtype = torch.promote_types(x.dtype, torch.float32)
        weight, bias = self.norm.weight.to(dtype), self.norm.bias.to(dtype)
        return F.layer_norm(x.to(dtype), self.norm.normalized_shape, weight, bias, self.norm.eps)

    def embed(self, images: Tensor) -> Tensor:
        """Return class token, registers and patches with their positions.

        Image sizes must be multiples of the patch size.
        """
        height, width = images.shape[2:]
        patch = self.config.patch_size
        if height % patch or width % patch:
            raise InputError(
                f"images of {height} x {width} pixels cannot be cut into patches of {patch}; use a multiple of {patch}"
            )
        x = self.patch_embed(images)
        first: Tensor = self.cls_token
        positions = self.interpolate_positions(height // patch, width // patch)
        if self.config.class_position:
            first, positions = first + positions[:, :1], positions[:, 1:]
        in_front = [first, self.reg_token] if self.config.registers else [first]  # registers have no position
        return torch.cat([*(rows.expand(x.shape[0], -1, -1) for rows in in_front), x + positions], dim=1)

    def interpolate_positions(self, rows: int, columns: int) -> Tensor:
        """Return the position embedding for a grid: (1, [1 +] rows * columns, D)."""
        grid = self.config.grid
        if (rows, columns) == (grid, grid):
            return self.pos_embed
        first, rest = self.pos_embed.split([self.pos_embed.shape[1] - grid**2, grid**2], dim=1)
        image = rest.unflatten(1, (grid, grid)).permute(0, 3, 1, 2)  # (1, D, grid, grid)
        image = F.interpolate(image, size=(rows, columns), mode="bicubic", antialias=True, align_corners=False)
        return torch.cat([first, image.flatten(2).transpose(1, 2)], dim=1)

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of the weights."""
        return self.cls_token.dtype

    def load_weights(self, weights: Mapping[str, Tensor]) -> None:
        """Load a state dict with timm's names, strictly.

        The error names the first name or shape that differs.
        """
        self.check_weights(weights)
        self.load_state_dict(dict(weights))

    def check_weights(self, weights: Mapping[str, Tensor]) -> None:
        """Raise an error if a name or shape of a state dict does not fit this network."""
        own = self.state_dict()
        for name in [*own, *weights]:
            if name not in weights:
                raise InputError(f"the weights lack '{name}', which this ViT needs")
            if name not in own:
                raise InputError(f"the weights hold '{name}', which this ViT does not have")
            if own[name].shape != weights[name].shape:
                raise InputError(
                    f"'{name}' is {tuple(weights[name].shape)} in the weights but {tuple(own[name].shape)} in this ViT"
                )
