"""Predictions on a GPU whose bits do not depend on the batch, for every method, whatever operations it calls.

    with BatchInvariant(len(images)):
        logits = method.predict(images).logits     # row i has the same bits in every batch that holds image i

Libraries choose a kernel by the number of rows, and some divide a sum differently for another number. Within the context, every
operation in which that can happen is computed by the kernels of `fixed_tiles`, which have no such choice: matrix products in any
form, attention, sums. The large products and the attention of the network are left to the libraries, which are faster, if they are
found to give every image the same bits in all of the batch sizes that are used (`BATCH_SIZES`): that is tried on random values for
each shape, once in a process, and decided for all sizes alike. Other operations act on each element or row by itself.

The context costs Python time for each operation, so it belongs around what is captured as a CUDA graph.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._python_dispatch import TorchDispatchMode

from caprompt.backbones import attention, layers  # noqa: F401  (their operators are replaced)

__all__ = ["BATCH_SIZES", "BatchInvariant"]

HALF = (torch.bfloat16, torch.float16)
BATCH_SIZES: tuple[int, ...] = (1, 2, 4, 8, 16, 32, *range(64, 257, 32))
LIBRARY_ATTENTION = (SDPBackend.CUDNN_ATTENTION, SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH)

Operation = Callable[..., Tensor]
_is_invariant: dict[tuple[Any, ...], bool] = {}  # whether a library's operation was found not to depend on the batch


class BatchInvariant(TorchDispatchMode):
    """A context in which operations on a GPU give each row the same bits in every batch.

    `num_images` says how many images are predicted, one of `BATCH_SIZES`; without it, libraries are not trusted with anything.
    """

    def __init__(self, num_images: int | None = None) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.num_images = num_images if num_images in BATCH_SIZES else None

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Say that no compiled code runs within the context; otherwise its first operation imports the compiler, for seconds."""
        return False

    def __enter__(self) -> BatchInvariant:
        self._attention: AbstractContextManager[None] = sdpa_kernel(SDPBackend.MATH)  # which consists of products and a softmax
        self._attention.__enter__()
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)  # type: ignore[no-untyped-call]
        self._attention.__exit__(*error)

    def __torch_dispatch__(
        self, operation: Any, types: Sequence[type], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        replacement = _REPLACEMENTS.get(operation)
        first = next((each for each in args if isinstance(each, Tensor)), None)
        if replacement is None or first is None or not first.is_cuda:
            return operation(*args, **kwargs)
        if operation in _LARGE and not kwargs and self._trusts_library(operation, args):
            return _call_library(operation, [each.contiguous() if index in _LARGE[operation] and isinstance(each, Tensor) else each
                                             for index, each in enumerate(args)])  # fmt: skip
        result = replacement(*args, **kwargs)
        return operation(*args, **kwargs) if result is NotImplemented else result

    def _trusts_library(self, operation: Any, args: Sequence[Any]) -> bool:
        """Return whether a library's operation gives each image the same bits in all batch sizes; try that if it is not known.

        Only in half precision, which is that of the network: what a method computes of its own parameters, which have no images,
        is in float32.
        """
        batched = [index for index in _LARGE[operation] if index < len(args) and isinstance(args[index], Tensor)]
        if self.num_images is None or any(args[index].dtype not in HALF or len(args[index]) % self.num_images for index in batched):
            return False
        key = (operation, *(_describe(each, self.num_images if index in batched else None) for index, each in enumerate(args)))
        if key not in _is_invariant:
            _is_invariant[key] = _try_batch_sizes(operation, args, batched, self.num_images)
        return _is_invariant[key]


def _describe(argument: Any, num_images: int | None) -> Any:
    """Return what a library may choose its kernel by, apart from the number of images."""
    if not isinstance(argument, Tensor):
        return argument
    if num_images is None:
        return tuple(argument.shape), argument.stride(), argument.dtype, argument.device
    return len(argument) // num_images, tuple(argument.shape[1:]), argument.dtype, argument.device


def _try_batch_sizes(operation: Any, args: Sequence[Any], batched: Sequence[int], num_images: int) -> bool:
    """Compare the results for random images alone and in all batch sizes, bit by bit; `batched` arguments have images."""
    most = max(BATCH_SIZES)
    drawn = list(args)
    for index in batched:
        rows = len(args[index]) // num_images * most
        drawn[index] = torch.randn(rows, *args[index].shape[1:], device=args[index].device).to(args[index].dtype)

    def run(start: int, stop: int) -> Tensor:
        own = list(drawn)
        for index in batched:
            rows = len(drawn[index]) // most
            own[index] = drawn[index][start * rows : stop * rows].clone()  # an operation may write into it
        return _call_library(operation, own)

    alone = torch.cat([run(index, index + 1) for index in range(most)])
    return all(torch.equal(run(0, size), alone[: len(alone) // most * size]) for size in BATCH_SIZES)


def _call_library(operation: Any, args: Sequence[Any]) -> Tensor:
    with sdpa_kernel(list(LIBRARY_ATTENTION)):
        result: Tensor = operation(*args)
    return result


def _multiply(a: Tensor, b: Tensor) -> Tensor:
    from caprompt.backbones.fixed_tiles import multiply

    return multiply(a, b)


def _add_product(base: Tensor, a: Tensor, b: Tensor, *, beta: float = 1, alpha: float = 1) -> Tensor:
    """Compute beta base + alpha a b, for `addmm` and `baddbmm`."""
    product = _multiply(a, b)
    return base * beta + (product if alpha == 1 else product * alpha)


def _linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    from caprompt.backbones.fixed_tiles import linear

    if x.dtype == torch.float64:
        product = _multiply(x.reshape(-1, x.shape[-1]), weight.T).view(*x.shape[:-1], len(weight))
        return product if bias is None else product + bias
    return linear(x, weight, bias)


def _add_bias(bias: Tensor, a: Tensor, b: Tensor, *, beta: float = 1, alpha: float = 1) -> Tensor:
    if bias.dim() == 1 and beta == 1 and alpha == 1:
        return _linear(a, b.T, bias)
    return _add_product(bias, a, b, beta=beta, alpha=alpha)


def _linear_gelu(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    from caprompt.backbones.fixed_tiles import linear

    return linear(x, weight, bias, gelu=True)


def _attend_with_prefix(projected: Tensor, keys: Tensor, values: Tensor, heads: int, query: Tensor | None = None) -> Tensor:
    """Replace `attention.attend_with_prefix`: what lies in the padding is not read."""
    from caprompt.backbones.fixed_tiles import attend

    padding, width = keys.shape[1:]
    own = projected[:, padding:]
    own_keys, own_values = own[..., -2 * width :].chunk(2, dim=2)
    prefix = (keys, values) if padding else None
    return attend(own[..., :width] if query is None else query, own_keys, own_values, heads, prefix)


def _sum(x: Tensor, dim: Sequence[int] | None, keepdim: bool = False, *, dtype: torch.dtype | None = None) -> Any:
    """Sum over dimensions other than the first, which is that of the images, as a product with ones."""
    dims = sorted({each % x.dim() for each in dim or ()}) if x.dim() else []
    if not dims or dims[0] == 0 or not x.is_floating_point() or dtype not in (None, x.dtype):
        return NotImplemented
    kept = [each for each in range(x.dim()) if each not in dims]
    rows = x.permute(*kept, *dims).flatten(len(kept)).flatten(0, -2)  # (rows, summed)
    total = _multiply(rows, x.new_ones(rows.shape[1], 1))
    return total.view([1 if each in dims and keepdim else x.shape[each] for each in range(x.dim()) if keepdim or each in kept])


def _mean(x: Tensor, dim: Sequence[int] | None, keepdim: bool = False, *, dtype: torch.dtype | None = None) -> Any:
    total = _sum(x, dim, keepdim, dtype=dtype)
    return total if total is NotImplemented else total * (total.numel() / x.numel())


def _norm(x: Tensor, order: float = 2, dim: Any = None, keepdim: bool = False, *, dtype: torch.dtype | None = None) -> Any:
    total = _sum(x.square(), dim, keepdim, dtype=dtype) if order == 2 else NotImplemented
    return total if total is NotImplemented else total.sqrt()


_aten, _own = torch.ops.aten, torch.ops.caprompt
_REPLACEMENTS: dict[Any, Callable[..., Any]] = {
    _aten.mm.default: _multiply,
    _aten.bmm.default: _multiply,
    _aten.addmm.default: _add_bias,
    _aten.baddbmm.default: _add_product,
    _aten.linear.default: _linear,
    _aten.sum.dim_IntList: _sum,
    _aten.mean.dim: _mean,
    _aten.linalg_vector_norm.default: _norm,
    _own.linear_gelu.default: _linear_gelu,
    _own.attend_beside.default: _attend_with_prefix,
}
#: Operations for which a library may be used, and which of their arguments have images as their first dimension.
_LARGE: dict[Any, tuple[int, ...]] = {
    _aten.mm.default: (0,),
    _aten.addmm.default: (1,),
    _own.linear_gelu.default: (0,),
    _own.attend_beside.default: (0, 1, 2, 4),
}
