"""What the speed benchmarks share: medians of device time, the device's ceilings, a ViT-B/16 with CAPrompt, and the yardstick.

The yardstick is the plain way: every pass by itself from the pixels on, every token through every block, no sharing, no
recording. It lives here and not in the package, and is measured in the same run as what it is compared with.
"""

from __future__ import annotations

import gc
import json
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.profiler import ProfilerActivity, profile

from caprompt.backbones.fp8 import convert_to_fp8
from caprompt.backbones.layers import Norm
from caprompt.backbones.vit import Mlp, ViT, ViTConfig
from caprompt.experiments.run_folder import environment
from caprompt.methods.caprompt import CAPrompt, CAPromptOptions, concave_gap, linear_loss
from caprompt.methods.components.prefix import Prefix

BASE = ViTConfig(image_size=224, patch_size=16, width=768, depth=12, heads=12, mlp_width=3072)
RESULTS = Path(__file__).parent / "results"


def median_seconds(function: Callable[[], object], repeats: int = 20, warm_up: int = 8) -> float:
    """The median time of a call, by device events on a GPU and by the clock elsewhere."""
    for _ in range(warm_up):
        function()
    seconds: list[float] = []
    for _ in range(repeats):
        if torch.cuda.is_available():
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            start.record()
            function()
            end.record()
            torch.cuda.synchronize()
            seconds.append(start.elapsed_time(end) / 1e3)
        else:
            began = time.perf_counter()
            function()
            seconds.append(time.perf_counter() - began)
    return statistics.median(seconds)


KINDS = {"attention": ("sdpa", "fmha", "flash"), "products": ("gemm", "nvjet", "cutlass", "xmma")}  # by parts of kernels' names


def where_time_goes(function: Callable[[], object], calls: int = 3) -> dict[str, float]:
    """Milliseconds of a call by kind of kernel on a GPU, with how many kernels run: products, attention, and all else."""
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as trace:
        for _ in range(calls):
            function()
        torch.cuda.synchronize()
    spent = dict.fromkeys((*KINDS, "else", "kernels"), 0.0)
    for event in trace.key_averages():
        if event.device_type.name == "CUDA" and not event.is_user_annotation:
            name = event.key.lower()
            known = {} if name.startswith("triton_") else KINDS  # the compiler names its kernels after what they stand beside
            kind = next((kind for kind, parts in known.items() if any(part in name for part in parts)), "else")
            spent[kind] += event.self_device_time_total / 1e3 / calls
            spent["kernels"] += event.count / calls
    return spent


def ceilings(device: torch.device) -> dict[str, float]:
    """What the device does at best: a large matrix product, and a copy counted as bytes read plus written.

    The product is of bfloat16 on a GPU and of float32 on a CPU, which may have to do bfloat16 in software.
    """
    side, numbers, dtype = (8192, 1 << 28, torch.bfloat16) if device.type == "cuda" else (2048, 1 << 24, torch.float32)
    a, b = (torch.randn(side, side, device=device, dtype=dtype) for _ in range(2))
    source = torch.randn(numbers, device=device)
    target = torch.empty_like(source)
    return {
        "matrix_tflops": 2 * side**3 / median_seconds(lambda: a @ b) / 1e12,
        "copy_tb_per_s": 2 * source.nbytes / median_seconds(lambda: target.copy_(source)) / 1e12,
    }


def forward_gflop(config: ViTConfig) -> float:
    """What one pass over an image takes: patches, products of the blocks, attention.

    >>> round(forward_gflop(BASE), 1)
    35.1
    """
    patches, width = config.grid**2, config.width
    tokens = patches + 1
    maps = 4 * width**2 + 2 * width * config.mlp_width  # of a token in a block
    block = tokens * maps + 2 * tokens**2 * width
    return 2 * (patches * 3 * config.patch_size**2 * width + config.depth * block) / 1e9


def caprompt(
    device: torch.device, dtype: torch.dtype, tasks: int, classes: int = 10, config: ViTConfig = BASE, **options: Any
) -> CAPrompt:
    """CAPrompt in the middle of its last task, on a ViT with random weights; the same numbers for every device and dtype."""
    chance = torch.Generator().manual_seed(0)
    vit = ViT(config)
    with torch.no_grad():
        for name, parameter in vit.named_parameters():
            if "norm" not in name:
                parameter.copy_(torch.randn(parameter.shape, generator=chance) * (0.02 if parameter.dim() == 1 else 0.03))
    method = CAPrompt(vit.requires_grad_(False).eval(), CAPromptOptions(classifier="aligned", replay="mean", **options))
    for _ in range(tasks):
        method.begin_task(classes, chance)
        method.prompt.data.add_(torch.randn(method.prompt.shape, generator=chance) * 0.1)
    method.head.weight.data.mul_(4)  # so that the task weights are not all alike
    method.to(device)
    method.vit.to(dtype)
    return method


@dataclass(frozen=True)
class Variant:
    """A way to compute the same."""

    dtype: torch.dtype
    compiled: bool = False
    recorded: bool = True
    in_fp8: bool = False
    compact: bool = True  # where compiled: a byte a number for the gradients of norms and GELUs
    attention: str = ""  # "" is what torch chooses, else flash or cudnn
    plain: bool = False  # the yardstick's four separate passes

    def applied(self, tasks: int) -> CAPrompt:
        """CAPrompt on a GPU, computing so; what variants before it have left behind is cleared away."""
        torch.compiler.reset()
        gc.collect()
        torch.cuda.empty_cache()
        for kind in ("flash", "cudnn", "mem_efficient"):
            getattr(torch.backends.cuda, f"enable_{kind}_sdp")(self.attention in ("", kind))
        method = caprompt(torch.device("cuda"), self.dtype, tasks)
        if self.in_fp8:
            convert_to_fp8(method.vit)
        if self.compiled:
            method.vit.set_compiled(True)
            for part in method.vit.modules():
                if isinstance(part, (Mlp, Norm)):
                    part.compact = self.compact
        return method


def batch(method: CAPrompt, size: int) -> tuple[Tensor, Tensor]:
    """Random images and labels of the current task."""
    chance, side = torch.Generator().manual_seed(1), method.vit.config.image_size
    images = torch.randn(size, 3, side, side, generator=chance).to(method.device)
    return images, torch.randint(method.num_known_classes, method.num_classes, (size,), generator=chance).to(method.device)


def plain_losses(method: CAPrompt, images: Tensor, labels: Tensor) -> dict[str, Tensor]:
    """CAPrompt's loss with four separate passes."""
    prompts, options = torch.stack(method.prompts), method.options
    known = method.num_known_classes

    def features(weights: Tensor, among: Tensor) -> Tensor:
        rows = torch.einsum("bt,tlknd->lkbnd", weights, among)
        return method.vit.encode(images, Prefix(rows, method.layers))[:, 0]  # all tokens through the last block, as is usual

    def probability(found: Tensor) -> Tensor:
        logits = F.linear(found, method.head.weight.detach(), method.head.bias.detach())
        logits = torch.cat([logits[:, :known].detach(), logits[:, known:]], dim=1)
        return logits.softmax(dim=1).gather(1, labels[:, None])[:, 0]

    with torch.no_grad():
        equal = images.new_full((len(images), len(prompts)), 1 / len(prompts))
        weights = method.next_weights(method.head(features(equal, prompts)))
        old = weights[:, :-1] / weights[:, :-1].sum(dim=1, keepdim=True)
        g_old = probability(features(old, prompts[:-1]))
    mixed = features(weights, prompts)
    g_own = probability(features(torch.ones_like(weights[:, :1]), prompts[-1:]))
    gap = concave_gap(weights[:, -1], g_own, g_old, probability(mixed)).clamp_min(0).mean()
    linear = linear_loss(method.prompt, method.earlier[-1], method.earlier[0])
    ce = F.cross_entropy(method.head(mixed)[:, known:], labels - known)
    return {"ce": ce, "concave": options.alpha * gap, "linear": options.beta * linear}


def save(name: str, figures: dict[str, Any], folder: Path = RESULTS) -> None:
    """Write the figures with date, hardware and versions."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    document = {"date": date.today().isoformat(), "environment": environment(device), **figures}
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{name}.json").write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
