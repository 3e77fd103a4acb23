"""The blocks of the network on a GPU in half precision, without gradients: what lies between two products is one kernel.

    norm, scale and shift | projection | attention beside the prefix | projection |
    scale and shift, residual, norm, scale and shift | projection with GELU | projection |
    scale and shift, residual, and the norm, scale and shift of the next block

It is rounded less often than the separate operations of PyTorch (`vit.Block.forward`), from which it differs within the rounding of
half precision. The result for an image does not depend on the others of a batch (`batch_invariance`).

Shapes: B images, N tokens, n prefix rows, D width.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from caprompt.backbones.attention import attend_with_prefix
from caprompt.backbones.layers import linear_gelu
from caprompt.utils.devices import has_triton

if TYPE_CHECKING:
    from caprompt.backbones.vit import Adaptation, Block, Mlp

__all__ = ["can_fuse", "run_fused_blocks"]


def can_fuse(x: Tensor) -> bool:
    """Return whether blocks with this input can be computed by the fused kernels.

    >>> can_fuse(torch.zeros(1, 5, 32))
    False
    """
    if torch.compiler.is_compiling() or torch.is_grad_enabled():
        return False
    return x.dtype in (torch.bfloat16, torch.float16) and has_triton(x.device)


def run_fused_blocks(
    blocks: nn.ModuleList, x: Tensor, adaptation: Adaptation, index: int | None, num_blocks: int
) -> tuple[Tensor, list[Tensor]]:
    """Apply all blocks to tokens (B, N, D); see `vit.ViT.run_blocks`.

    Return the last block's output, (B, N or 1, D), and the token at the `index` after each of the `num_blocks` - 1 before it.
    """
    last, kept, normed = len(blocks) - 1, [], None
    for layer, block in enumerate(blocks):
        rows = adaptation.tokens(layer, x)
        if rows is not None:
            x, normed = torch.cat([rows.to(x.dtype), x], dim=1), None  # (B, n + N, D)
        following = blocks[layer + 1] if layer < last else None
        x, normed = _run_block(block, x, normed, adaptation, index if layer == last else None, following)  # type: ignore[arg-type]
        if index is not None and last - num_blocks < layer < last:
            kept.append(x[:, index].unsqueeze(1))
    return x, kept


def _run_block(
    block: Block, x: Tensor, normed: Tensor | None, adaptation: Adaptation, index: int | None, following: Block | None
) -> tuple[Tensor, Tensor | None]:
    """Return the block's output, (B, N or 1, D), and what its successor reads of it, (B, n + N, D), if that is known by now."""
    from caprompt.backbones.fused_rows import finish_block_part

    layer, mlp = block.layer, block.mlp
    attended = _attend(block, x, normed, adaptation, index)
    x = x if index is None else x[:, index].unsqueeze(1)
    x, normed = finish_block_part(
        F.linear(attended, block.attn.proj.weight, block.attn.proj.bias), x, _get_factor(block.ls1),
        adaptation.modulation(layer, "attention_output"), block.norm2, adaptation.modulation(layer, "mlp_input"),
    )  # fmt: skip
    branch = adaptation.mlp(layer, x)
    assert normed is not None
    out = F.linear(_run_first_layer(mlp, normed), mlp.fc2.weight, mlp.fc2.bias)
    factor, modulation = _get_factor(block.ls2), adaptation.modulation(layer, "mlp_output")
    padding = adaptation.count_prefix_rows(layer + 1)
    # What is still to be added, or put in front, would be missing from the norm.
    if following is None or branch is not None or padding is None or adaptation.puts_tokens_in_front:
        x, normed = finish_block_part(out, x, factor, modulation)
        return (x if branch is None else x + branch.to(x.dtype)), None
    next_modulation = adaptation.modulation(layer + 1, "attention_input")
    return finish_block_part(out, x, factor, modulation, following.norm1, next_modulation, padding)


def _run_first_layer(mlp: Mlp, x: Tensor) -> Tensor:
    """Apply the first linear map and the GELU: (B, N, D) -> (B, N, M)."""
    from caprompt.backbones.fused_rows import apply_quick_gelu

    if mlp.quick:
        return apply_quick_gelu(F.linear(x, mlp.fc1.weight, mlp.fc1.bias))
    return linear_gelu(x, mlp.fc1.weight, mlp.fc1.bias)


def _attend(block: Block, x: Tensor, normed: Tensor | None, adaptation: Adaptation, index: int | None) -> Tensor:
    """Return what the heads of a block read, before their projection: (B, N or 1, D).

    `normed` is the block's normalized input below n rows of padding, (B, n + N, D), if it has been computed.
    """
    from caprompt.backbones.fused_rows import normalize

    layer, attention, width = block.layer, block.attn, x.shape[2]
    keys, values = (rows.to(x.dtype) for rows in adaptation.prefix(layer, x) or (x[:, :0], x[:, :0]))  # (B, n, D) each
    padding = keys.shape[1]
    if normed is None:
        normed = normalize(x, block.norm1, adaptation.modulation(layer, "attention_input"), padding)
    delta = adaptation.qkv(layer, normed[:, padding:])
    weight, bias = attention.qkv.weight, attention.qkv.bias
    query = None
    if index is None:
        projected = F.linear(normed, weight, bias)
    else:
        query = F.linear(normed[:, index].unsqueeze(1).contiguous(), weight[:width], bias[:width])
        projected = F.linear(normed, weight[width:], bias[width:])
    if delta is not None:
        delta = F.pad(delta.to(x.dtype), (0, 0, padding, 0))
        projected = projected + delta[..., -projected.shape[2] :]
        query = query if query is None else query + delta[:, index, :width].unsqueeze(1)
    return attend_with_prefix(projected, keys, values, attention.heads, query)


def _get_factor(scale: nn.Module) -> Tensor | None:
    """Return the factor of a layer scale, (D,), if the network has one."""
    return getattr(scale, "gamma", None)
