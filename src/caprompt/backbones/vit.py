"""The only vision transformer here: plain, pre-norm, with timm's parameter names.

Methods never copy or subclass it. They hand `forward` an `Adaptation`, whose hooks all default to nothing:

    features = vit(images)                        # (B, width), the class token after the last norm
    features = vit(images, adaptation)            # the same network, adapted per image
    stem = vit.stem(images)                       # what several passes over the same images share
    features = vit(stem, adaptation)

The weights may be held in bfloat16 or float16; features come out in float32 all the same.

Shapes: B images, N tokens (class token, registers, patches), D width, H heads of d = D / H.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from caprompt.backbones.attention import Attention
from caprompt.backbones.layers import Norm, compact_gelu, linear, linear_gelu
from caprompt.errors import InputError
from caprompt.utils.devices import has_float8

__all__ = ["NOTHING", "Adaptation", "Stem", "ViT", "ViTConfig"]


@dataclass(frozen=True)
class ViTConfig:
    """The shape of a plain ViT; everything else follows from it. The switches at the end tell DINOv2 and CLIP apart."""

    image_size: int
    patch_size: int
    width: int
    depth: int
    heads: int
    mlp_width: int
    norm_eps: float = 1e-6
    layer_scale: bool = False  # a learned factor per channel behind attention and MLP (DINOv2)
    registers: int = 0  # further tokens between the class token and the patches (DINOv2 with registers)
    class_position: bool = True  # the position embedding has a row for the class token; timm's `not no_embed_class`
    pre_norm: bool = False  # a norm before the first block (CLIP)
    quick_gelu: bool = False  # x * sigmoid(1.702 x) in place of the exact GELU (OpenAI's CLIP)
    patch_bias: bool = True

    @property
    def grid(self) -> int:
        """Patches along one side of an image."""
        return self.image_size // self.patch_size


class Adaptation:
    """What a method may change in a forward pass. `x` is a block's input, before its norm: (B, N, D).

    Where the ViT is held in bfloat16, so is `x`: learned float32 parameters that multiply it are cast with `.to(x.dtype)`.
    What a hook returns is cast by the ViT. Hooks act on each token by itself: of the last block, `mlp` sees the class token alone.
    """

    def tokens(self, layer: int, x: Tensor) -> Tensor | None:
        """Rows (B, n, D) put in front of this block's input; they stay for the blocks after it."""
        return None

    def prefix(self, layer: int, x: Tensor) -> tuple[Tensor, Tensor] | None:
        """Key and value rows, each (B, n, D), put in front of this block's own keys and values."""
        return None

    def qkv(self, layer: int, x: Tensor) -> Tensor | None:
        """A change (B, N, 3 D) added to the block's queries, keys and values; here `x` is normed."""
        return None

    def mlp(self, layer: int, x: Tensor) -> Tensor | None:
        """A branch (B, N, D) beside the MLP, added to its output; here `x` is the MLP's un-normed input."""
        return None


NOTHING = Adaptation()


class PatchEmbed(nn.Module):
    """Non-overlapping patches, each mapped to a token: a convolution by name, computed as one matrix product."""

    def __init__(self, config: ViTConfig) -> None:
        super().__init__()
        self.proj = nn.Conv2d(3, config.width, config.patch_size, stride=config.patch_size, bias=config.patch_bias)

    def forward(self, images: Tensor) -> Tensor:
        side = self.proj.kernel_size[0]
        cut = images.unflatten(3, (-1, side)).unflatten(2, (-1, side))  # (B, 3, rows, side, columns, side)
        patches = cut.permute(0, 2, 4, 1, 3, 5).flatten(3).flatten(1, 2)  # (B, rows * columns, 3 side side)
        return F.linear(patches, self.proj.weight.flatten(1), self.proj.bias)


class Mlp(nn.Module):
    """Two linear maps with a GELU between them."""

    compact = False  # keep a byte a number for the GELU's gradient; worth it where kernels are fused

    def __init__(self, config: ViTConfig) -> None:
        super().__init__()
        self.quick = config.quick_gelu
        self.fc1 = nn.Linear(config.width, config.mlp_width)
        self.fc2 = nn.Linear(config.mlp_width, config.width)

    def forward(self, x: Tensor) -> Tensor:
        return linear(self.fc2, self.hidden(x))

    def hidden(self, x: Tensor) -> Tensor:
        """Behind the first map and the GELU: (B, N, D) -> (B, N, M)."""
        if (
            x.is_cuda
            and x.dtype in (torch.bfloat16, torch.float16)
            and not (torch.is_grad_enabled() or self.quick)
            and isinstance(self.fc1, nn.Linear)
        ):
            fused: Tensor = linear_gelu(x, self.fc1.weight, self.fc1.bias)
            return fused
        if self.compact and not self.quick and type(self.fc1) is nn.Linear and not self.fc1.bias.requires_grad:
            return compact_gelu(F.linear(x, self.fc1.weight), self.fc1.bias)
        before: Tensor = self.fc1(x)
        if self.quick:
            return before * torch.sigmoid(1.702 * before)
        return compact_gelu(before) if self.compact else F.gelu(before)


class LayerScale(nn.Module):
    """A learned factor for each channel."""

    def __init__(self, config: ViTConfig) -> None:
        super().__init__()
        self.gamma = nn.Parameter(torch.ones(config.width))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.gamma


class Block(nn.Module):
    """One transformer block: attention and MLP, each behind a norm and beside a skip."""

    def __init__(self, config: ViTConfig, layer: int) -> None:
        super().__init__()
        self.layer = layer
        self.norm1 = Norm(config.width, eps=config.norm_eps)
        self.attn = Attention(config.width, config.heads)
        self.ls1 = LayerScale(config) if config.layer_scale else nn.Identity()
        self.norm2 = Norm(config.width, eps=config.norm_eps)
        self.mlp = Mlp(config)
        self.ls2 = LayerScale(config) if config.layer_scale else nn.Identity()

    def forward(self, x: Tensor, adaptation: Adaptation, stem: Stem | None = None, at: int | None = None) -> Tensor:
        """All tokens (B, N, D), or only the one at this index (from the end), (B, 1, D). A stem saves norm and projection."""
        rows = adaptation.tokens(self.layer, x)
        if rows is not None:
            x, stem = torch.cat([rows.to(x.dtype), x], dim=1), None  # (B, n + N, D)
        normed = self.norm1(x) if stem is None else stem.normed
        change, prefix = adaptation.qkv(self.layer, normed), adaptation.prefix(self.layer, x)
        x = x if at is None else x[:, at].unsqueeze(1)
        x = x + self.ls1(self.attn(normed, prefix, change, at, known=None if stem is None else stem.qkv))
        branch = adaptation.mlp(self.layer, x)
        x = x + self.ls2(self.mlp(self.norm2(x)))
        return x if branch is None else x + branch.to(x.dtype)


@dataclass(frozen=True)
class Stem:
    """What all passes over the same images share, however they are adapted: the tokens, and how the first block reads them."""

    tokens: Tensor  # (B, N, D)
    normed: Tensor  # (B, N, D), behind the first block's norm
    qkv: Tensor  # (B, N, 3 D), the first block's queries, keys and values
    patches: int  # of one image
    times: int = 1  # that the images are to be seen, one after another

    def repeated(self, times: int) -> Stem:
        """The same images several times; what that takes is only written out where the blocks begin, and read."""
        return replace(self, times=self.times * times)

    def written_out(self) -> Stem:
        """All images in a row."""
        if self.times == 1:
            return self
        tokens, normed, qkv = (part.repeat(self.times, 1, 1) for part in (self.tokens, self.normed, self.qkv))
        return Stem(tokens, normed, qkv, self.patches)

    def only(self, rows: Tensor) -> Stem:
        """Some of the images, by their numbers."""
        stem = self.written_out()
        return Stem(stem.tokens[rows], stem.normed[rows], stem.qkv[rows], self.patches)


COMPILED = ("before_blocks", "run_blocks")  # the parts of a pass that `set_compiled` compiles
#: How: a sum that two kernels read is written down once, not added up anew in each.
FUSING: dict[str, Any] = {"realize_reads_threshold": 1}


class ViT(nn.Module):
    """The network. Build it from a `ViTConfig`, fill it with `load_weights`."""

    recompute = False  # keep only each block's input for the gradient, and compute the rest again

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

    def forward(self, images: Tensor | Stem, adaptation: Adaptation = NOTHING) -> Tensor:
        """The class-token feature of each image: (B, 3, height, width), or their stem -> (B, D)."""
        return self.last_norm(self.class_token(images, adaptation))

    def class_token(self, images: Tensor | Stem, adaptation: Adaptation = NOTHING) -> Tensor:
        """The class token behind the last block, before the last norm and in the numbers of the weights: (B, D)."""
        stem = images if isinstance(images, Stem) else self.stem(images)
        # Only the class token is read, so the last block need not compute the others. It is counted from the end, since rows
        # that `tokens` hooks put in front push it back.
        return self.run_blocks(stem, adaptation, at=-stem.patches - self.config.registers - 1)[:, 0]

    def encode(self, images: Tensor | Stem, adaptation: Adaptation = NOTHING) -> Tensor:
        """All tokens after the last norm: (B, 3, height, width), or their stem -> (B, N, D)."""
        stem = images if isinstance(images, Stem) else self.stem(images)
        return self.last_norm(self.run_blocks(stem, adaptation, at=None))

    def stem(self, images: Tensor) -> Stem:
        """The part of a pass that no adaptation changes: (B, 3, height, width) pixels to the first block's projection."""
        patches = (images.shape[2] // self.config.patch_size) * (images.shape[3] // self.config.patch_size)
        return Stem(*self.before_blocks(images), patches)

    def before_blocks(self, images: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The tokens, (B, N, D), the same behind the first block's norm, and their projection, (B, N, 3 D)."""
        x = self.norm_pre(self.embed(images.to(self.cls_token.dtype)))
        first: Block = self.blocks[0]  # type: ignore[assignment]
        normed = first.norm1(x)
        return x, normed, first.attn.qkv(normed)

    def run_blocks(self, stem: Stem, adaptation: Adaptation, at: int | None) -> Tensor:
        """The blocks one after another; the last one may give a single token."""
        stem, last = stem.written_out(), len(self.blocks) - 1
        x = stem.tokens
        for layer, block in enumerate(self.blocks):
            call = partial(block, adaptation=adaptation, stem=stem if layer == 0 else None, at=at if layer == last else None)
            if self.recompute and torch.is_grad_enabled():
                # Nothing in a block is random, and a step that is being recorded could not save the state of chance.
                x = checkpoint(call, x, use_reentrant=False, preserve_rng_state=False)
            else:
                x = call(x)
        return x

    def set_compiled(self, wanted: bool) -> None:
        """Let the compiler fuse kernels of a whole pass, which pays when many batches of one size follow; or let it be."""
        if wanted == (COMPILED[0] in vars(self)):
            return
        if wanted:
            known = hasattr(torch._dynamo.config, "recompile_limit")  # since torch 2.7
            # one for each shape, with and without gradient
            setattr(torch._dynamo.config, "recompile_limit" if known else "cache_size_limit", 64)
            for name in COMPILED:
                setattr(self, name, torch.compile(getattr(self, name), dynamic=False, options=FUSING))
        else:
            for name in COMPILED:
                delattr(self, name)
        bytes_for_norms = not self.cls_token.is_cuda or has_float8(self.cls_token.device)  # a CPU writes any type
        for part in self.blocks.modules():
            if isinstance(part, (Mlp, Norm)):
                part.compact = wanted and (bytes_for_norms or isinstance(part, Mlp))

    def copy_uncompiled(self) -> ViT:
        """The same network with weights of its own; what was compiled is bound to this one."""
        twin = copy.deepcopy(self)
        twin.set_compiled(False)
        return twin

    def last_norm(self, x: Tensor) -> Tensor:
        """The norm behind the last block, in float32 at least."""
        dtype = torch.promote_types(x.dtype, torch.float32)
        weight, bias = self.norm.weight.to(dtype), self.norm.bias.to(dtype)
        return F.layer_norm(x.to(dtype), self.norm.normalized_shape, weight, bias, self.norm.eps)

    def embed(self, images: Tensor) -> Tensor:
        """Class token, registers and patches with their positions; any image size that the patch divides."""
        height, width = images.shape[2:]
        patch = self.config.patch_size
        if height % patch or width % patch:
            raise InputError(f"images of {height} x {width} pixels cannot be cut into patches of {patch}")
        x = self.patch_embed(images)
        first: Tensor = self.cls_token
        positions = self.positions(height // patch, width // patch)
        if self.config.class_position:
            first, positions = first + positions[:, :1], positions[:, 1:]
        in_front = [first, self.reg_token] if self.config.registers else [first]  # registers have no position
        return torch.cat([*(rows.expand(x.shape[0], -1, -1) for rows in in_front), x + positions], dim=1)

    def positions(self, rows: int, columns: int) -> Tensor:
        """The position embedding for a grid, interpolated where it is not the trained one: (1, [1 +] rows * columns, D)."""
        grid = self.config.grid
        if (rows, columns) == (grid, grid):
            return self.pos_embed
        first, rest = self.pos_embed.split([self.pos_embed.shape[1] - grid**2, grid**2], dim=1)
        image = rest.unflatten(1, (grid, grid)).permute(0, 3, 1, 2)  # (1, D, grid, grid)
        image = F.interpolate(image, size=(rows, columns), mode="bicubic", antialias=True, align_corners=False)
        return torch.cat([first, image.flatten(2).transpose(1, 2)], dim=1)

    @property
    def dtype(self) -> torch.dtype:
        """The numbers that the weights are held in."""
        return self.cls_token.dtype

    def load_weights(self, weights: Mapping[str, Tensor]) -> None:
        """Copy a state dict in timm's naming, strictly; the first name or shape that differs is named in the error."""
        self.check_weights(weights)
        self.load_state_dict(dict(weights))

    def check_weights(self, weights: Mapping[str, Tensor]) -> None:
        """Say which name or shape, if any, keeps a state dict from being this network's."""
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
