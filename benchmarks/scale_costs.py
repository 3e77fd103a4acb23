"""What learning and prediction cost per image, per class and per worker: the constants of docs/scale.md.

    OMP_NUM_THREADS=1 python benchmarks/scale_costs.py      # prints them, adds this device to results/speed/scale.json

Measured are the steps of teaching a model of sums (methods `ridge` and `ranpac`): the backbone's forward pass, adding an image to
the sums, adding up sums between processes (gloo), solving for the weights; and scoring all classes in a prediction. Then all steps
together, for several numbers of workers and classes, to compare with what tools/scale_model.py computes from the constants.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from _common import BASE, SPEED, count_forward_gflop, measure_ceilings, median_seconds, save
from torch import Tensor
from torch.multiprocessing.spawn import spawn as start_processes

from caprompt.backbones.vit import ViT
from caprompt.methods.components.exact_sums import compute_each
from caprompt.methods.components.ridge import RandomRidge, RidgeHead

WIDTH = BASE.width
STRENGTH = 1.0  # of the regression; the time does not depend on it
GPU = torch.cuda.is_available()
DEVICE = torch.device("cuda" if GPU else "cpu")
PROJECTIONS = (2_000, 5_000, 10_000) if GPU else (1_000, 2_000, 4_000)
CLASSES = (100, 1_000, 10_000)
BATCH = 1024  # images whose features are added at once


def time_once(function: Callable[[], object]) -> float:
    """Return the median time of three calls, after one to warm up."""
    return median_seconds(function, repeats=3, warm_up=1)


def make_vit() -> ViT:
    """Return a ViT-B/16 with random weights, in the precision that prediction uses on this device."""
    torch.manual_seed(0)
    return ViT(BASE).requires_grad_(False).eval().to(DEVICE, torch.bfloat16 if GPU else torch.float32)


def make_features(count: int, classes: int) -> tuple[Tensor, Tensor]:
    """Return random features and classes of images."""
    rng = torch.Generator().manual_seed(1)
    features = torch.randn(count, WIDTH, generator=rng).to(DEVICE)
    return features, torch.randint(classes, (count,), generator=rng).to(DEVICE)


def make_ridge(projections: int, classes: int) -> RandomRidge:
    """Return an empty regression with exact sums."""
    ridge = RandomRidge(WIDTH, projections, STRENGTH, dtype=torch.float64).to(DEVICE)
    ridge.grow(classes, torch.Generator().manual_seed(2))
    return ridge


def measure_forward() -> dict[str, float]:
    """Measure a forward pass as it is computed for exact sums: an image at a time on a CPU, batches of 32 on a GPU."""
    vit = make_vit()
    count = 512 if GPU else 2
    images = torch.randn(count, 3, 224, 224, device=DEVICE, dtype=vit.dtype)
    seconds = time_once(lambda: compute_each(vit.forward_class_token, images)) / count
    return {"seconds_per_image": seconds, "tflops": count_forward_gflop(BASE) / 1e3 / seconds}


def measure_sums(projections: int, classes: int) -> dict[str, float]:
    """Measure projecting an image's features and adding them to the sums."""
    ridge, count = make_ridge(projections, classes), BATCH if GPU else 256
    features, labels = make_features(count, classes)
    seconds = time_once(lambda: ridge.ridge.observe(ridge.project(features), labels)) / count
    held = sum(buffer.numel() * buffer.element_size() for buffer in ridge.buffers())
    return {"projections": projections, "classes": classes, "seconds_per_image": seconds, "bytes": held}


def measure_solve(projections: int, classes: int) -> dict[str, float]:
    """Measure solving for the weights."""
    head = RidgeHead(projections, STRENGTH, torch.float64).to(DEVICE)
    head.grow(classes, torch.Generator())
    head.gram = torch.eye(projections, dtype=torch.float64, device=DEVICE) * 2 + 1e-3
    head.count.fill_(1)
    head.sums.normal_(generator=torch.Generator(DEVICE).manual_seed(3))
    return {"projections": projections, "classes": classes, "seconds": time_once(head.solve)}


def measure_head(projections: int, classes: int) -> dict[str, float]:
    """Measure the scores of all classes in a prediction, for a batch of 256 images."""
    weight = torch.randn(classes, projections, device=DEVICE)
    hidden = torch.randn(256, projections, device=DEVICE)
    return {"projections": projections, "classes": classes, "seconds_per_image": time_once(lambda: hidden @ weight.T) / 256}


# -- several processes -----------------------------------------------------------------------------------------------------------


@contextmanager
def join(rank: int, size: int, port: int) -> Iterator[None]:
    """Join a group of processes on this machine."""
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    dist.init_process_group("gloo", rank=rank, world_size=size)
    try:
        yield
    finally:
        dist.destroy_process_group()


def add_up(tensor: Tensor) -> float:
    """Return the seconds that adding up a tensor between all processes takes, from when all of them are ready."""
    dist.barrier()
    start = time.perf_counter()
    dist.all_reduce(tensor)
    return time.perf_counter() - start


def run_reduction(rank: int, size: int, port: int, megabytes: list[float], out: str) -> None:
    """Measure the addition of tensors of several sizes."""
    torch.set_num_threads(1)
    with join(rank, size, port):
        rows = []
        for each in megabytes:
            tensor = torch.ones(int(each * 125_000), dtype=torch.float64)
            seconds = sorted(add_up(tensor) for _ in range(5))[2]
            rows.append({"workers": size, "megabytes": each, "seconds": seconds})
        if rank == 0:
            Path(out).write_text(json.dumps(rows))


def run_workers(rank: int, size: int, port: int, images: int, projections: int, classes: int, out: str) -> None:
    """Teach random images: each process its share, then the sums are added up, and every process solves."""
    torch.set_num_threads(1)
    vit, ridge = make_vit(), make_ridge(projections, classes)
    own = images // size
    labels = torch.randint(classes, (own,), generator=torch.Generator().manual_seed(rank)).to(DEVICE)
    pixels = torch.randn(min(own, 256), 3, 224, 224, device=DEVICE, dtype=vit.dtype)

    def teach() -> None:
        for start in range(0, own, 256):
            part = labels[start : start + 256]
            features = compute_each(vit.forward_class_token, pixels[: len(part)])
            ridge.ridge.observe(ridge.project(features.float()), part)
        if size > 1:
            for tensor in (ridge.ridge.gram, ridge.ridge.sums):
                host = tensor.cpu()
                dist.all_reduce(host)
                tensor.copy_(host)
        ridge.ridge.solve()
        if GPU:
            torch.cuda.synchronize()

    with join(rank, size, port):
        teach()
        seconds = []
        for _ in range(2):
            dist.barrier()
            start = time.perf_counter()
            teach()
            seconds.append(time.perf_counter() - start)
        if rank == 0:
            row = {"workers": size, "images": images, "projections": projections, "classes": classes}
            Path(out).write_text(json.dumps([{**row, "seconds": min(seconds)}]))


def spawn(function: Callable[..., None], size: int, *arguments: Any) -> list[dict[str, float]]:
    """Run a function in so many processes and return what the first one wrote."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    out = Path(f"/tmp/scale-{os.getpid()}.json")
    start_processes(function, args=(size, port, *arguments, str(out)), nprocs=size)
    rows: list[dict[str, float]] = json.loads(out.read_text())
    out.unlink()
    return rows


def main() -> None:
    """Measure and write."""
    torch.set_num_threads(args.threads)
    images = 4096 if GPU else 16
    projections = PROJECTIONS[-1] if GPU else PROJECTIONS[1]
    workers = [1] if GPU else [1, 2]
    result: dict[str, Any] = {"threads": args.threads, "ceilings": measure_ceilings(DEVICE), "forward": measure_forward()}
    result["sums"] = [measure_sums(each, classes) for each in PROJECTIONS for classes in CLASSES[:: 2 - GPU]]
    result["solve"] = [measure_solve(each, classes) for each in PROJECTIONS for classes in CLASSES[:2]]
    result["head"] = [measure_head(PROJECTIONS[-1], classes) for classes in CLASSES]
    sizes = [0.1, 10, 100, 400]
    result["addition"] = [row for size in (2, 4) for row in spawn(run_reduction, size, sizes)]
    result["teaching"] = [
        row for size in workers for classes in CLASSES[:2] for row in spawn(run_workers, size, images, projections, classes)
    ]
    print(json.dumps(result, indent=1))
    path = args.out / "scale.json"
    devices = json.loads(path.read_text(encoding="utf-8"))["devices"] if path.is_file() else {}
    save("scale", {"devices": {**devices, DEVICE.type: result}}, args.out)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--out", type=Path, default=SPEED)
    args = parser.parse_args()
    main()
