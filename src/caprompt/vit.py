"""The only vision transformer here: plain, pre-norm, with timm's parameter names.

Methods never copy or subclass it. They hand `forward` an `Adaptation`, whose hooks all default to nothing:

    features = vit(images)                        # (B, width), the class token after the last norm
    features = vit(images, adaptation)            # the same network, adapted per image

Shapes: B images, N tokens (class token, registers, patches), D width, H heads of d = D / H.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from caprompt.errors import InputError

__all__ = ["Adaptation", "ViT", "ViTConfig"]


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
    """What a method may change in a forward pass. `x` is a block's input, before its norm: (B, N, D)."""

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
    """Non-overlapping patches, each mapped to a token."""

    def __init__(self, config: ViTConfig) -> None:
        super().__init__()
        self.proj = nn.Conv2d(3, config.width, config.patch_size, stride=config.patch_size, bias=config.patch_bias)

    def forward(self, images: Tensor) -> Tensor:
        tokens: Tensor = self.proj(images)  # (B, D, rows, columns)
        return tokens.flatten(2).transpose(1, 2)  # (B, rows * columns, D)


class Attention(nn.Module):
    """Self-attention that may be given further keys and values per image."""

    def __init__(self, config: ViTConfig) -> None:
        super().__init__()
        self.heads = config.heads
        self.qkv = nn.Linear(config.width, 3 * config.width)
        self.proj = nn.Linear(config.width, config.width)

    def split(self, x: Tensor) -> Tensor:
        """(B, n, D) -> (B, H, n, d)."""
        parts: Tensor = x.unflatten(2, (self.heads, -1))
        return parts.transpose(1, 2)

    def forward(self, x: Tensor, prefix: tuple[Tensor, Tensor] | None, change: Tensor | None) -> Tensor:
        qkv = self.qkv(x) if change is None else self.qkv(x) + change
        query, key, value = qkv.chunk(3, dim=2)  # (B, N, D) each
        if prefix is not None:
            key = torch.cat([prefix[0], key], dim=1)  # (B, n + N, D)
            value = torch.cat([prefix[1], value], dim=1)
        mixed = F.scaled_dot_product_attention(self.split(query), self.split(key), self.split(value))
        out: Tensor = self.proj(mixed.transpose(1, 2).flatten(2))  # (B, H, N, d) -> (B, N, D)
        return out


class Mlp(nn.Module):
    """Two linear maps with a GELU between them."""

    def __init__(self, config: ViTConfig) -> None:
        super().__init__()
        self.quick = config.quick_gelu
        self.fc1 = nn.Linear(config.width, config.mlp_width)
        self.fc2 = nn.Linear(config.mlp_width, config.width)

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.fc1(x)
        out: Tensor = self.fc2(hidden * torch.sigmoid(1.702 * hidden) if self.quick else F.gelu(hidden))
        return out


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
        self.norm1 = nn.LayerNorm(config.width, eps=config.norm_eps)
        self.attn = Attention(config)
        self.ls1 = LayerScale(config) if config.layer_scale else nn.Identity()
        self.norm2 = nn.LayerNorm(config.width, eps=config.norm_eps)
        self.mlp = Mlp(config)
        self.ls2 = LayerScale(config) if config.layer_scale else nn.Identity()

    def forward(self, x: Tensor, adaptation: Adaptation) -> Tensor:
        rows = adaptation.tokens(self.layer, x)
        if rows is not None:
            x = torch.cat([rows, x], dim=1)  # (B, n + N, D)
        normed = self.norm1(x)
        x = x + self.ls1(self.attn(normed, adaptation.prefix(self.layer, x), adaptation.qkv(self.layer, normed)))
        branch = adaptation.mlp(self.layer, x)
        x = x + self.ls2(self.mlp(self.norm2(x)))
        return x if branch is None else x + branch


class ViT(nn.Module):
    """The network. Build it from a `ViTConfig`, fill it with `load_weights`."""

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

    def forward(self, images: Tensor, adaptation: Adaptation = NOTHING) -> Tensor:
        """The class-token feature of each image: (B, 3, height, width) -> (B, D)."""
        x = self.encode(images, adaptation)
        # Rows that `tokens` hooks put in front push the class token back.
        patches = (images.shape[2] // self.config.patch_size) * (images.shape[3] // self.config.patch_size)
        return x[:, x.shape[1] - patches - self.config.registers - 1]

    def encode(self, images: Tensor, adaptation: Adaptation = NOTHING) -> Tensor:
        """All tokens after the last norm: (B, 3, height, width) -> (B, N, D)."""
        x = self.norm_pre(self.embed(images))
        for block in self.blocks:
            x = block(x, adaptation)
        out: Tensor = self.norm(x)
        return out

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
