"""Shared code of the benchmarks: median device times, peak rates of the device, a ViT-B/16 with CAPrompt, the plain baseline.

The baseline is the straightforward implementation: each pass starts from the pixels, every token goes through every block,
nothing is shared or captured. It is measured in the same run as what it is compared with.
"""

from __future__ import annotations

import gc
import json
import runpy
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
from caprompt.data import Dataset
from caprompt.experiments.provenance import find_commit
from caprompt.experiments.run_folder import describe_environment
from caprompt.methods.caprompt import CAPrompt, CAPromptOptions, concave_gap, linear_loss
from caprompt.methods.components.heads import LinearHead
from caprompt.methods.components.prefix import Prefix

BASE = ViTConfig(image_size=224, patch_size=16, width=768, depth=12, heads=12, mlp_width=3072)
ROOT = Path(__file__).resolve().parents[1]
ACCURACY, SPEED = ROOT / "results" / "accuracy", ROOT / "results" / "speed"


def median_seconds(function: Callable[[], object], repeats: int = 20, warm_up: int = 8) -> float:
    """Return the median time of a call, by device events on a GPU and by the clock elsewhere."""
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


KINDS = {"attention": ("sdpa", "fmha", "flash"), "products": ("gemm", "nvjet", "cutlass", "xmma")}  # by substrings of kernel names


def profile_kernels(function: Callable[[], object], calls: int = 3) -> dict[str, float]:
    """Return milliseconds of a call by kind of kernel on a GPU (matmuls, attention, other), and the number of kernels."""
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as trace:
        for _ in range(calls):
            function()
        torch.cuda.synchronize()
    spent = dict.fromkeys((*KINDS, "else", "kernels"), 0.0)
    for event in trace.key_averages():
        if event.device_type.name == "CUDA" and not event.is_user_annotation:
            name = event.key.lower()
            known = {} if name.startswith("triton_") else KINDS  # torch.compile names its kernels after neighboring operations
            kind = next((kind for kind, parts in known.items() if any(part in name for part in parts)), "else")
            spent[kind] += event.self_device_time_total / 1e3 / calls
            spent["kernels"] += event.count / calls
    return spent


def measure_ceilings(device: torch.device) -> dict[str, float]:
    """Return the peak rates of the device: a large matmul, and a copy counted as bytes read plus written.

    The matmul is in bfloat16 on a GPU and in float32 on a CPU, which may emulate bfloat16 in software.
    """
    side, length, dtype = (8192, 1 << 28, torch.bfloat16) if device.type == "cuda" else (2048, 1 << 24, torch.float32)
    a, b = (torch.randn(side, side, device=device, dtype=dtype) for _ in range(2))
    source = torch.randn(length, device=device)
    target = torch.empty_like(source)
    return {
        "matrix_tflops": 2 * side**3 / median_seconds(lambda: a @ b) / 1e12,
        "copy_tb_per_s": 2 * source.nbytes / median_seconds(lambda: target.copy_(source)) / 1e12,
    }


def count_forward_gflop(config: ViTConfig) -> float:
    """Return the GFLOP of one forward pass of an image: patch embedding, matmuls of the blocks, attention.

    >>> round(count_forward_gflop(BASE), 1)
    35.1
    """
    patches, width = config.grid**2, config.width
    tokens = patches + 1
    maps = 4 * width**2 + 2 * width * config.mlp_width  # per token in a block
    block = tokens * maps + 2 * tokens**2 * width
    return 2 * (patches * 3 * config.patch_size**2 * width + config.depth * block) / 1e9


PAPER_RECIPE = {"classifier": "aligned", "replay": "mean"}


def build_caprompt(
    device: torch.device, dtype: torch.dtype, tasks: int, classes: int = 10, config: ViTConfig = BASE, **options: Any
) -> CAPrompt:
    """Build CAPrompt in the middle of its last task, on a ViT with random weights, the same for every device and dtype.

    It has the paper's constraints and head; with `classifier="ridge"`, it is the default.
    """
    rng = torch.Generator().manual_seed(0)
    vit = ViT(config)
    with torch.no_grad():
        for name, parameter in vit.named_parameters():
            if "norm" not in name:
                parameter.copy_(torch.randn(parameter.shape, generator=rng) * (0.02 if parameter.dim() == 1 else 0.03))
    method = CAPrompt(vit.requires_grad_(False).eval(), CAPromptOptions(**{**PAPER_RECIPE, **options}))
    for _ in range(tasks):
        method.begin_task(classes, rng)
        method.prompt.data.add_(torch.randn(method.prompt.shape, generator=rng) * 0.1)
    method.head.weight.data.mul_(4)  # so that the task weights are not all alike
    method.to(device)
    method.vit.to(dtype)
    return method


@dataclass(frozen=True)
class Variant:
    """A variant of the same computation."""

    dtype: torch.dtype
    compiled: bool = False
    captured: bool = True  # as a CUDA graph
    in_fp8: bool = False
    compact: bool = True  # if compiled: derivatives of norms and GELUs stored as uint8
    attention: str = ""  # "" is the choice of torch, else flash or cudnn
    plain: bool = False  # the baseline's four separate passes
    tf32: bool = False  # matmuls of float32 on the tensor cores, with 10 bits of mantissa
    recipe: str = "aligned"  # the paper's constraints and head, or "ridge": the default
    projections: int = 100  # of the default's regression, which training does not use

    def build(self, tasks: int) -> CAPrompt:
        """Build CAPrompt in this variant on a GPU, after freeing the memory of earlier variants."""
        torch.compiler.reset()
        gc.collect()
        torch.cuda.empty_cache()
        for kind in ("flash", "cudnn", "mem_efficient"):
            getattr(torch.backends.cuda, f"enable_{kind}_sdp")(self.attention in ("", kind))
        torch.set_float32_matmul_precision("high" if self.tf32 else "highest")
        method = build_caprompt(torch.device("cuda"), self.dtype, tasks, classifier=self.recipe, projections=self.projections)
        if self.in_fp8:
            convert_to_fp8(method.vit)
        if self.compiled:
            method.vit.set_compiled(True)
            for part in method.vit.modules():
                if isinstance(part, (Mlp, Norm)):
                    part.compact = self.compact
        return method


def make_batch(method: CAPrompt, size: int) -> tuple[Tensor, Tensor]:
    """Return random images and labels of the current task."""
    rng, side = torch.Generator().manual_seed(1), method.vit.config.image_size
    images = torch.randn(size, 3, side, side, generator=rng).to(method.device)
    return images, torch.randint(method.num_known_classes, method.num_classes, (size,), generator=rng).to(method.device)


def compute_plain_losses(method: CAPrompt, images: Tensor, labels: Tensor) -> dict[str, Tensor]:
    """Compute the losses of CAPrompt with four separate passes."""
    head = method.head
    assert isinstance(head, LinearHead)
    prompts, options = torch.stack(method.prompts), method.options
    known = method.num_known_classes

    def features(weights: Tensor, among: Tensor) -> Tensor:
        rows = torch.einsum("bt,tlknd->lkbnd", weights, among)
        return method.vit.encode(images, Prefix(rows, method.layers))[:, 0]  # all tokens through the last block, as in usual code

    def probability(rows: Tensor) -> Tensor:
        logits = F.linear(rows, head.weight.detach(), head.bias.detach())
        logits = torch.cat([logits[:, :known].detach(), logits[:, known:]], dim=1)
        return logits.softmax(dim=1).gather(1, labels[:, None])[:, 0]

    with torch.no_grad():
        equal = images.new_full((len(images), len(prompts)), 1 / len(prompts))
        weights = method.compute_task_weights(method.head(features(equal, prompts)))
        old = weights[:, :-1] / weights[:, :-1].sum(dim=1, keepdim=True)
        g_old = probability(features(old, prompts[:-1]))
    mixed = features(weights, prompts)
    g_own = probability(features(torch.ones_like(weights[:, :1]), prompts[-1:]))
    gap = concave_gap(weights[:, -1], g_own, g_old, probability(mixed)).clamp_min(0).mean()
    linear = linear_loss(method.prompt, method.earlier[-1], method.earlier[0])
    ce = F.cross_entropy(method.head(mixed)[:, known:], labels - known)
    return {"ce": ce, "concave": options.alpha * gap, "linear": options.beta * linear}


def save(name: str, result: dict[str, Any], directory: Path, data: Dataset | None = None, device: str | None = None) -> None:
    """Write a result with its commit, date, machine and versions, and the digests of its data (empty for random images).

    The device is a GPU where there is one, if the benchmark does not name another.
    """
    used = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
    provenance = {"commit": find_commit(), "date": date.today().isoformat(), "environment": describe_environment(used)}
    digests = {"train": data.train.digest(), "test": data.test.digest()} if data else {}
    directory.mkdir(parents=True, exist_ok=True)
    document = {**provenance, "data_sha256": digests, **result}
    (directory / f"{name}.json").write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")


def print_table(name: str, result: dict[str, Any]) -> None:
    """Print a result as the table of docs/performance.md."""
    print(runpy.run_path(str(ROOT / "tools" / "performance_page.py"))["FORMATTERS"][name](result))
