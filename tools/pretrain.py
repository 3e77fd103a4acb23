"""Train a small ViT from scratch on a folder of images: by labels, from a teacher, or both.

    python tools/pretrain.py --images tiny-imagenet --teacher deit_tiny_patch16_224.safetensors --out mini.safetensors

`--images` holds train/<class>/*.png (or .jpg) and, for validation, test/<class>/*.png. All images stay on the device as bytes
and are augmented there: a crop of at least `--smallest-crop` of the area, flip, colours; `--mix` is the part of them mixed with
another. A teacher (a plain ViT in timm's naming) sees exactly the picture that the student sees, only larger; the student learns
its class token and its patch tokens, pooled to the student's grid. Labels train a head that is thrown away. Each `--every`
epochs a checkpoint is written and the test split measured; `--resume` goes on from there.
What is written is a backbone that `caprompt` loads by its path: fp16, timm's names, mean and std in its metadata.
"""

from __future__ import annotations

import json
import math
import time
from argparse import ArgumentParser, Namespace, RawDescriptionHelpFormatter
from collections.abc import Sequence
from pathlib import Path

import torch
import torch.nn.functional as F
from ncm import Folder, features, list_folder, nearest_mean, normalize, random_vit
from safetensors.torch import save
from torch import Tensor, nn
from torch.optim import AdamW, Optimizer

from caprompt.backbones.vit import ViT, ViTConfig
from caprompt.backbones.weights import IMAGENET_MEAN, IMAGENET_STD, load_backbone
from caprompt.errors import CapromptError, InputError

MODES = {"supervised": ("labels",), "distil": ("class", "patches"), "both": ("class", "patches", "labels")}
SHAPE = {"size": 64, "patch": 8, "width": 192, "depth": 6, "heads": 3, "seed": 0}
STEPS = {"epochs": 100, "batch-size": 512, "lr": 1e-3, "weight-decay": 0.05, "smallest-crop": 0.2, "mix": 0.5, "every": 20}


class Teacher(nn.Module):
    """A frozen ViT that looks at the student's images, enlarged, and answers with tokens on the student's grid."""

    def __init__(self, path: Path, student: ViTConfig, samples: Tensor) -> None:
        super().__init__()
        backbone = load_backbone(path)
        self.vit = backbone.build().to(samples.device)
        self.mean, self.std, self.grid = backbone.mean, backbone.std, student.grid
        # Bicubic resizing is linear and works on rows and columns apart, so that a matrix for each does it.
        ones, size = torch.eye(student.image_size)[None, None], (backbone.config.image_size, student.image_size)
        self.enlarge = F.interpolate(ones, size, mode="bicubic", antialias=True)[0, 0].to(samples.device)
        tokens = self(samples.float() / 255)  # how far each channel spreads, so that all can count alike
        patches = tokens[:, 1:].std(dim=(0, 1)).expand(1, self.grid**2, -1)
        self.spread = torch.cat([tokens[:, :1].std(dim=0, keepdim=True), patches], dim=1).clamp(min=1e-3)  # (1, N, D)

    @torch.no_grad()
    def forward(self, images: Tensor) -> Tensor:
        """The class token and the pooled patches: (B, 3, S, S) in 0..1 -> (B, 1 + grid * grid, D)."""
        large = (self.enlarge @ images @ self.enlarge.T).clamp(0, 1)
        tokens = self.vit.encode(normalize(large, self.mean, self.std))
        image = tokens[:, 1:].transpose(1, 2).unflatten(2, (self.vit.config.grid, -1))  # (B, D, rows, columns)
        pooled = F.adaptive_avg_pool2d(image, self.grid).flatten(2).transpose(1, 2)
        return torch.cat([tokens[:, :1], pooled], dim=1).float()


class Student(nn.Module):
    """The ViT that is kept, with the heads that are thrown away."""

    def __init__(self, vit: ViT, classes: int, teacher: Teacher | None) -> None:
        super().__init__()
        width, wanted = vit.config.width, (teacher.vit if teacher else vit).config.width
        self.vit = vit
        self.classifier = nn.Linear(width, classes)
        self.project = nn.Identity() if wanted == width else nn.Linear(width, wanted)

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """Tokens in the teacher's width (B, N, D) and logits of the labels (B, classes)."""
        tokens = self.vit.encode(normalize(images, IMAGENET_MEAN, IMAGENET_STD))
        return self.project(tokens).float(), self.classifier(tokens[:, 0]).float()


def augment(images: Tensor, smallest: float, generator: torch.Generator) -> Tensor:
    """Crop, flip and recolour each image by its own draw: (B, 3, S, S) uint8 -> floats in 0..1."""

    def draw(low: float, high: float) -> Tensor:
        return torch.empty(images.shape[0], device=images.device).uniform_(low, high, generator=generator)

    area, ratio = draw(smallest, 1), draw(-math.log(4 / 3), math.log(4 / 3)).exp()
    width, height = (area * ratio).sqrt().clamp(max=1), (area / ratio).sqrt().clamp(max=1)
    zero = torch.zeros_like(area)
    across = torch.stack([width * draw(-1, 1).sign(), zero, (1 - width) * draw(-1, 1)], dim=1)
    down = torch.stack([zero, height, (1 - height) * draw(-1, 1)], dim=1)
    grid = F.affine_grid(torch.stack([across, down], dim=1), list(images.shape), align_corners=False)
    brightness, contrast, saturation = (draw(0.6, 1.4).view(-1, 1, 1, 1) for _ in range(3))
    x = F.grid_sample(brightness * images / 255, grid, mode="bicubic", padding_mode="reflection", align_corners=False)
    grey = (x * x.new_tensor([0.299, 0.587, 0.114]).view(1, 3, 1, 1)).sum(dim=1, keepdim=True)
    x = grey + saturation * (x - grey)
    level = grey.mean(dim=(2, 3), keepdim=True)
    return (level + contrast * (x - level)).clamp(0, 1)


def mix(images: Tensor, chance: float, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Blend an image with, or paste into it a part of, its mirror place in the batch; what share stays its own: (B,)."""
    count, _, side, _ = images.shape
    share, kind, x, y = torch.rand(4, count, 1, 1, 1, device=images.device, generator=generator)
    line = (torch.arange(side, device=images.device) + 0.5) / side
    half = (1 - share).sqrt() / 2
    outside = ((line.view(1, 1, 1, -1) - x).abs() > half) | ((line.view(1, 1, -1, 1) - y).abs() > half)
    own = torch.where(kind < chance / 2, share, torch.where(kind < chance, outside.float(), 1.0)).expand(-1, -1, side, side)
    return own * images + (1 - own) * images.flip(0), own.mean(dim=(1, 2, 3))


def losses(student: Student, teacher: Teacher | None, images: Tensor, labels: Tensor, share: Tensor) -> dict[str, Tensor]:
    """Every loss that this student can have on a batch, as a mean over its images."""
    tokens, logits = student(images)
    own, other = (F.cross_entropy(logits, target, reduction="none", label_smoothing=0.1) for target in (labels, labels.flip(0)))
    found = {"labels": (share * own + (1 - share) * other).mean()}
    if teacher is not None:
        apart = F.smooth_l1_loss(tokens / teacher.spread, teacher(images) / teacher.spread, reduction="none")
        found |= {"class": apart[:, 0].mean(), "patches": apart[:, 1:].mean()}
    return found


def optimizer_of(student: Student, lr: float, decay: float) -> AdamW:
    """AdamW that decays matrices only, not norms, biases, positions and the class token."""
    groups: tuple[list[nn.Parameter], list[nn.Parameter]] = ([], [])
    for name, value in student.named_parameters():
        groups[value.ndim > 1 and not name.endswith(("pos_embed", "cls_token"))].append(value)
    return AdamW([{"params": groups[0], "weight_decay": 0.0}, {"params": groups[1], "weight_decay": decay}], lr=lr, fused=True)


def rate(epoch: float, epochs: int, warmup: float = 5.0) -> float:
    """The learning rate's factor: linear up over the first epochs, then half a cosine down to nothing.

    >>> [round(rate(epoch, epochs=25), 2) for epoch in (2.5, 5, 15, 25)]
    [0.5, 1.0, 0.5, 0.0]
    """
    warmup = min(warmup, epochs / 5)
    return min(epoch / warmup, (1 + math.cos(math.pi * (epoch - warmup) / (epochs - warmup))) / 2)


def save_backbone(vit: ViT, out: Path) -> None:
    """Write the ViT as fp16 with what shapes cannot tell; the file appears whole or not at all."""
    about = {"heads": vit.config.heads, "norm_eps": vit.config.norm_eps, "mean": IMAGENET_MEAN, "std": IMAGENET_STD}
    weights = {name: tensor.detach().half().cpu().contiguous() for name, tensor in vit.state_dict().items()}
    part = out.with_name(out.name + ".part")
    part.write_bytes(save(weights, metadata={"caprompt": json.dumps(about)}))
    part.replace(out)


def save_checkpoint(path: Path, epoch: int, student: Student, optimizer: Optimizer) -> None:
    """Write all that a resumed training needs; random draws are seeded by the epoch and need no saving."""
    part = path.with_name(path.name + ".part")
    torch.save({"epoch": epoch, "student": student.state_dict(), "optimizer": optimizer.state_dict()}, part)
    part.replace(path)


def load_checkpoint(path: Path, student: Student, optimizer: Optimizer) -> int:
    """Fill student and optimizer; how many epochs they have behind them."""
    saved = torch.load(path, weights_only=True)
    try:
        student.load_state_dict(saved["student"])
        optimizer.load_state_dict(saved["optimizer"])
    except (RuntimeError, ValueError) as error:
        raise InputError(f"'{path}' is of a training with other options: {error}") from error
    return int(saved["epoch"])


def run_epoch(
    args: Namespace, epoch: int, student: Student, teacher: Teacher | None, optimizer: Optimizer, images: Tensor, labels: Tensor
) -> dict[str, float]:
    """Every image once, in an order and under views drawn from the epoch's seed; the mean of each loss."""
    generator = torch.Generator(images.device).manual_seed(1000 * args.seed + epoch)
    order = torch.randperm(len(images), device=images.device, generator=generator)
    batches = order.split(args.batch_size)[: max(1, len(images) // args.batch_size)]
    total = dict.fromkeys(MODES[args.mode], torch.zeros((), device=images.device))
    for step, chosen in enumerate(batches):
        for group in optimizer.param_groups:
            group["lr"] = args.lr * rate(epoch + step / len(batches), args.epochs)
        views, share = mix(augment(images[chosen], args.smallest_crop, generator), args.mix, generator)
        with torch.autocast(images.device.type, torch.bfloat16, enabled=images.is_cuda):
            found = losses(student, teacher, views, labels[chosen], share)
        optimizer.zero_grad()
        torch.autograd.backward(torch.stack([found[name] for name in total]).sum())
        nn.utils.clip_grad_norm_(student.parameters(), 1.0)
        optimizer.step()
        total = {name: value + found[name].detach() for name, value in total.items()}
    return {name: value.item() / len(batches) for name, value in total.items()}


def validate(vit: ViT, images: Tensor, folder: Folder, test_folder: Path) -> str:
    """The nearest-class-mean accuracy on the folder's test split, in words."""
    if not test_folder.is_dir():
        return "no test split to validate on"
    test = list_folder(test_folder, folder.classes)
    tests = test.load(images.shape[2])
    known, new = (features(vit, iter(x.split(512)), IMAGENET_MEAN, IMAGENET_STD).cpu() for x in (images, tests))
    return f"nearest class mean on {len(new)} test images: {nearest_mean(known, folder.labels, new, test.labels):.2f} %"


def parse(arguments: Sequence[str] | None) -> Namespace:
    """The command line; the defaults are the embedded backbone's."""
    parser = ArgumentParser(description=__doc__, formatter_class=RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=Path, required=True, help="folder with train/ and maybe test/")
    parser.add_argument("--teacher", type=Path, help=".safetensors file of a plain ViT in timm's naming")
    parser.add_argument("--mode", choices=MODES, help="default: distil with a teacher, supervised without")
    parser.add_argument("--out", type=Path, required=True, help="the .safetensors file to write")
    for name, value in {**SHAPE, **STEPS}.items():
        parser.add_argument(f"--{name}", type=type(value), default=value, help=f"default: {value}")
    parser.add_argument("--resume", action="store_true", help="go on from OUT.checkpoint if it is there")
    parser.add_argument("--compile", action="store_true", help="torch.compile both networks")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    args = parser.parse_args(arguments)
    args.mode = args.mode or ("distil" if args.teacher else "supervised")
    if args.mode != "supervised" and not args.teacher:
        parser.error(f"--mode {args.mode} needs --teacher")
    return args


def main(arguments: Sequence[str] | None = None) -> None:
    """Train, print a line an epoch, write the backbone."""
    args = parse(arguments)
    torch.manual_seed(args.seed)
    torch.set_float32_matmul_precision("high")
    folder = list_folder(args.images / "train")
    images, labels = folder.load(args.size).to(args.device), folder.labels.to(args.device)
    config = ViTConfig(args.size, args.patch, args.width, args.depth, args.heads, mlp_width=4 * args.width)
    samples = images[torch.randperm(len(images))[:1024].to(args.device)]
    teacher = Teacher(args.teacher, config, samples) if args.mode != "supervised" else None
    student = Student(random_vit(config, args.seed), len(folder.classes), teacher).to(args.device)
    optimizer = optimizer_of(student, args.lr, args.weight_decay)
    checkpoint = args.out.with_name(args.out.name + ".checkpoint")
    first = load_checkpoint(checkpoint, student, optimizer) if args.resume and checkpoint.is_file() else 0
    for network in filter(None, (student, teacher)) if args.compile else ():
        network.compile()

    for epoch in range(first, args.epochs):
        start = time.perf_counter()
        means = run_epoch(args, epoch, student, teacher, optimizer, images, labels)
        line = "  ".join(f"{name} {value:.4f}" for name, value in means.items())
        print(f"epoch {epoch + 1}/{args.epochs}  {line}  {len(images) / (time.perf_counter() - start):.0f} images/s", flush=True)
        if (epoch + 1) % args.every == 0 and epoch + 1 < args.epochs:
            save_checkpoint(checkpoint, epoch + 1, student, optimizer)
            print(validate(student.vit, images, folder, args.images / "test"), flush=True)
    save_backbone(student.vit, args.out)
    print(f"{args.out}: {args.out.stat().st_size} bytes; {validate(student.vit, images, folder, args.images / 'test')}")


if __name__ == "__main__":
    try:
        main()
    except CapromptError as error:
        raise SystemExit(f"error: {error}") from error
