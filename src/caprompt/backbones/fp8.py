"""Float8 matmuls for the frozen linear layers (`precision="fp8"`), on Ada, Hopper and later GPUs.

A matmul x W^T is computed from rows that are quantized to float8 (e4m3, three mantissa bits), each
row with its own scale: the rows of x on the fly, those of W once. Gradients are propagated in the
same way through W^T. Biases, norms, attention and trained parameters are the same as with bfloat16,
and so are the few matmuls of the class token alone.

Shapes: n rows of k values; W is (m, k).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from caprompt.backbones.vit import ViT

__all__ = ["Fp8Linear", "convert_from_fp8", "convert_to_fp8", "quantize_rows", "scaled_matmul", "set_precision", "uses_fp8"]

FLOAT8 = torch.float8_e4m3fn
FLOAT8_MAX = torch.finfo(FLOAT8).max  # 448
LINEAR_LAYERS = (("attn", "qkv"), ("attn", "proj"), ("mlp", "fc1"), ("mlp", "fc2"))  # of every block


def quantize_rows(x: Tensor) -> tuple[Tensor, Tensor]:
    """Return rows in float8 and the scale of each: (n, k) -> (n, k), (n, 1).

    >>> rows, scales = quantize_rows(torch.tensor([[1.0, -2.0], [0.0, 0.0]]))
    >>> (rows.float() * scales).tolist()
    [[1.0, -2.0], [0.0, 0.0]]
    """
    scale = (x.abs().amax(dim=1, keepdim=True).float() / FLOAT8_MAX).clamp_min(torch.finfo(torch.float32).tiny)
    return (x.float() / scale).to(FLOAT8), scale


def scaled_matmul(x: Tensor, weight: Tensor, weight_scales: Tensor) -> Tensor:
    """Compute x W^T with the rows of x and of W in float8: (..., k), (m, k), (m, 1) -> (..., m)."""
    rows, scales = quantize_rows(x.flatten(0, -2))
    if x.is_cuda:
        out = torch._scaled_mm(rows, weight.t(), scales, weight_scales.t(), out_dtype=x.dtype, use_fast_accum=True)
    else:  # the same quantized values, multiplied in float32
        out = ((rows.float() * scales) @ (weight.float() * weight_scales).t()).to(x.dtype)
    shaped: Tensor = out.unflatten(0, x.shape[:-1])
    return shaped


class _ScaledMatmul(torch.autograd.Function):
    """Multiply by W^T forward and by W backward, both in float8."""

    @staticmethod
    def forward(
        context: Any, x: Tensor, weight: Tensor, weight_scales: Tensor, transposed: Tensor, transposed_scales: Tensor
    ) -> Tensor:
        context.save_for_backward(transposed, transposed_scales)
        return scaled_matmul(x, weight, weight_scales)

    @staticmethod
    def backward(context: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        return scaled_matmul(gradient, *context.saved_tensors), None, None, None, None


class Fp8Linear(nn.Module):
    """Frozen linear layer with a float8 matmul.

    The original weight and bias keep their state-dict names.

    The quantized copies are non-persistent buffers: they are not part of the state dict.
    """

    quantized: Tensor  # W, (m, k)
    quantized_scales: Tensor
    transposed: Tensor  # W^T, (k, m)
    transposed_scales: Tensor

    def __init__(self, layer: nn.Linear) -> None:
        super().__init__()
        self.weight, self.bias = layer.weight, layer.bias
        for name, matrix in (("quantized", layer.weight), ("transposed", layer.weight.t().contiguous())):
            rows, scales = quantize_rows(matrix.detach())
            self.register_buffer(name, rows, persistent=False)
            self.register_buffer(f"{name}_scales", scales, persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        """Multiply in FP8, and add the bias: (..., D) -> (..., outputs)."""
        weights = (self.quantized, self.quantized_scales, self.transposed, self.transposed_scales)
        out: Tensor = _ScaledMatmul.apply(x, *weights)  # type: ignore[no-untyped-call]
        return out if self.bias is None else out + self.bias

    def to_linear(self) -> nn.Linear:
        """Return the original layer."""
        size, width = self.weight.shape
        with torch.device("meta"):
            linear = nn.Linear(width, size, bias=self.bias is not None)
        linear.weight, linear.bias = self.weight, self.bias
        return linear


def uses_fp8(vit: ViT) -> bool:
    """Return whether the matmuls of the blocks are in float8."""
    return isinstance(vit.blocks[0].mlp.fc1, Fp8Linear)  # type: ignore[union-attr]


def convert_to_fp8(vit: ViT) -> ViT:
    """Replace the linear layers of the blocks by float8 ones, in place.

    Weights that are loaded later have no effect on them.
    """
    return _replace_layers(vit, nn.Linear, Fp8Linear)


def convert_from_fp8(vit: ViT) -> ViT:
    """Replace float8 layers by the original ones, in place."""
    return _replace_layers(vit, Fp8Linear, Fp8Linear.to_linear)


def set_precision(vit: ViT, dtype: torch.dtype, in_fp8: bool, weights: Mapping[str, Tensor]) -> bool:
    """Set the dtype of a frozen backbone (or float8), reloading its weights if it changed.

    Return whether it did.
    """
    if (vit.dtype, uses_fp8(vit)) == (dtype, in_fp8):
        return False
    convert_from_fp8(vit).to(dtype).load_weights(weights)
    if in_fp8:
        convert_to_fp8(vit)
    return True


def _replace_layers(vit: ViT, old: type[nn.Module], make: Callable[[Any], nn.Module]) -> ViT:
    for block in vit.blocks:
        for part, name in LINEAR_LAYERS:
            owner = getattr(block, part)
            if isinstance(getattr(owner, name), old):
                setattr(owner, name, make(getattr(owner, name)))
    return vit
