"""Train a small ViT from scratch on a folder of images: by labels, from a teacher, or both.

    python tools/pretrain_backbone.py --images tiny-imagenet --out mini.safetensors \\
        --teacher deit_tiny_patch16_224.safetensors

`--images` contains train/<class>/<image> and, for validation, test/<class>/<image>. All images stay
on the device as uint8 and are augmented there: a crop of at least `--smallest-crop` of the area,
flip and color jitter; a share of `--mix` of them is mixed with another image. The teacher (a plain
ViT) receives the student's augmented image, enlarged; the student learns its class token and its
patch tokens, pooled to the student's grid. Labels train a head that is discarded. Every `--every`
epochs a checkpoint is written and the test split is evaluated; `--resume` continues from there. The
output is a backbone that `caprompt` loads by path: float16, timm's names, mean and std in its
metadata.
"""

from __future__ import annotations

import io
import json
import math
import time
from argparse import ArgumentParser, Namespace, RawDescriptionHelpFormatter
from collections.abc import Sequence
from pathlib import Path

import torch
import torch.nn.functional as F
from ncm import compute_features, encode_labels, load_images, nearest_mean_accuracy, normalize, random_vit
from safetensors.torch import save
from torch import Tensor, nn
from torch.optim import AdamW, Optimizer

from caprompt.backbones import ViT, ViTConfig, load_backbone
from caprompt.backbones.constants import IMAGENET_MEAN, IMAGENET_STD
from caprompt.data.samples import Samples
from caprompt.data.sources import read_source
from caprompt.errors import CapromptError, InputError
from caprompt.utils.files import write_bytes

MODES = {"supervised": ("labels",), "distil": ("class", "patches"), "both": ("class", "patches", "labels")}
ARCHITECTURE = {"size": 64, "patch": 8, "width": 192, "depth": 6, "heads": 3, "seed": 0}
TRAINING = {"epochs": 100, "batch-size": 512, "lr": 1e-3, "weight-decay": 0.05, "smallest-crop": 0.2, "mix": 0.5, "every": 20}


class Teacher(nn.Module):
    """Frozen ViT that encodes the student's images, enlarged, to tokens on the student's grid."""

    def __init__(self, path: Path, student: ViTConfig, images: Tensor) -> None:
        super().__init__()
        backbone = load_backbone(path)
        self.vit = backbone.build().to(images.device)
        self.mean, self.std, self.grid = backbone.mean, backbone.std, student.grid
        # Bicubic resizing is linear and separable, so one matrix each for rows and columns computes
        # it.
        identity, size = torch.eye(student.image_size)[None, None], (backbone.config.image_size, student.image_size)
        self.enlarge = F.interpolate(identity, size, mode="bicubic", antialias=True)[0, 0].to(images.device)
        tokens = self(images.float() / 255)  # for the std of each channel, so that all have equal weight in the loss
        patches = tokens[:, 1:].std(dim=(0, 1)).expand(1, self.grid**2, -1)
        self.token_std = torch.cat([tokens[:, :1].std(dim=0, keepdim=True), patches], dim=1).clamp(min=1e-3)  # (1, N, D)

    @torch.no_grad()
    def forward(self, images: Tensor) -> Tensor:
        """Return class token and pooled patches: (B, 3, S, S) in 0..1 -> (B, 1 + grid ** 2, D)."""
        large = (self.enlarge @ images @ self.enlarge.T).clamp(0, 1)
        tokens = self.vit.encode(normalize(large, self.mean, self.std))
        image = tokens[:, 1:].transpose(1, 2).unflatten(2, (self.vit.config.grid, -1))  # (B, D, rows, columns)
        pooled = F.adaptive_avg_pool2d(image, self.grid).flatten(2).transpose(1, 2)
        return torch.cat([tokens[:, :1], pooled], dim=1).float()


class Student(nn.Module):
    """The ViT that is trained, with heads that are discarded."""

    def __init__(self, vit: ViT, num_classes: int, teacher: Teacher | None) -> None:
        super().__init__()
        width, teacher_width = vit.config.width, (teacher.vit if teacher else vit).config.width
        self.vit = vit
        self.classifier = nn.Linear(width, num_classes)
        self.project = nn.Identity() if teacher_width == width else nn.Linear(width, teacher_width)

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """Return tokens in the teacher's width (B, N, D) and class logits (B, num_classes)."""
        tokens = self.vit.encode(normalize(images, IMAGENET_MEAN, IMAGENET_STD))
        return self.project(tokens).float(), self.classifier(tokens[:, 0]).float()


def augment(images: Tensor, smallest_crop: float, generator: torch.Generator) -> Tensor:
    """Crop, flip and color-jitter each image: (B, 3, S, S) uint8 -> floats in 0..1."""

    def draw(low: float, high: float) -> Tensor:
        return torch.empty(images.shape[0], device=images.device).uniform_(low, high, generator=generator)

    area, ratio = draw(smallest_crop, 1), draw(-math.log(4 / 3), math.log(4 / 3)).exp()
    width, height = (area * ratio).sqrt().clamp(max=1), (area / ratio).sqrt().clamp(max=1)
    zero = torch.zeros_like(area)
    horizontal = torch.stack([width * draw(-1, 1).sign(), zero, (1 - width) * draw(-1, 1)], dim=1)
    vertical = torch.stack([zero, height, (1 - height) * draw(-1, 1)], dim=1)
    grid = F.affine_grid(torch.stack([horizontal, vertical], dim=1), list(images.shape), align_corners=False)
    brightness, contrast, saturation = (draw(0.6, 1.4).view(-1, 1, 1, 1) for _ in range(3))
    x = F.grid_sample(brightness * images / 255, grid, mode="bicubic", padding_mode="reflection", align_corners=False)
    gray = (x * x.new_tensor([0.299, 0.587, 0.114]).view(1, 3, 1, 1)).sum(dim=1, keepdim=True)
    x = gray + saturation * (x - gray)
    level = gray.mean(dim=(2, 3), keepdim=True)
    return (level + contrast * (x - level)).clamp(0, 1)


def mix(images: Tensor, probability: float, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Blend images with the reversed batch (mixup) or paste a box of it (CutMix).

    Return the share that is their own: (B,).
    """
    count, _, side, _ = images.shape
    share, kind, x, y = torch.rand(4, count, 1, 1, 1, device=images.device, generator=generator)
    position = (torch.arange(side, device=images.device) + 0.5) / side
    half = (1 - share).sqrt() / 2
    outside = ((position.view(1, 1, 1, -1) - x).abs() > half) | ((position.view(1, 1, -1, 1) - y).abs() > half)
    own = torch.where(kind < probability / 2, share, torch.where(kind < probability, outside.float(), 1.0)).expand(
        -1, -1, side, side
    )
    return own * images + (1 - own) * images.flip(0), own.mean(dim=(1, 2, 3))


def compute_losses(student: Student, teacher: Teacher | None, images: Tensor, labels: Tensor, share: Tensor) -> dict[str, Tensor]:
    """Return every available loss on a batch, each a mean over its images."""
    tokens, logits = student(images)
    own, other = (F.cross_entropy(logits, target, reduction="none", label_smoothing=0.1) for target in (labels, labels.flip(0)))
    losses = {"labels": (share * own + (1 - share) * other).mean()}
    if teacher is not None:
        distance = F.smooth_l1_loss(tokens / teacher.token_std, teacher(images) / teacher.token_std, reduction="none")
        losses |= {"class": distance[:, 0].mean(), "patches": distance[:, 1:].mean()}
    return losses


def make_optimizer(student: Student, lr: float, weight_decay: float) -> AdamW:
    """Return AdamW with weight decay for matrices only."""
    groups: tuple[list[nn.Parameter], list[nn.Parameter]] = ([], [])
    for name, value in student.named_parameters():
        groups[value.ndim > 1 and not name.endswith(("pos_embed", "cls_token"))].append(value)
    return AdamW(
        [{"params": groups[0], "weight_decay": 0.0}, {"params": groups[1], "weight_decay": weight_decay}], lr=lr, fused=True
    )


def schedule(epoch: float, epochs: int, warmup: float = 5.0) -> float:
    """Return the factor of the learning rate: linear warm-up, then cosine decay to zero.

    >>> [round(schedule(epoch, epochs=25), 2) for epoch in (2.5, 5, 15, 25)]
    [0.5, 1.0, 0.5, 0.0]
    """
    warmup = min(warmup, epochs / 5)
    return min(epoch / warmup, (1 + math.cos(math.pi * (epoch - warmup) / (epochs - warmup))) / 2)


def save_backbone(vit: ViT, out: Path) -> None:
    """Write the ViT as float16, atomically, with metadata for what shapes do not determine."""
    metadata = {"heads": vit.config.heads, "norm_eps": vit.config.norm_eps, "mean": IMAGENET_MEAN, "std": IMAGENET_STD}
    weights = {name: tensor.detach().half().cpu().contiguous() for name, tensor in vit.state_dict().items()}
    write_bytes(out, save(weights, metadata={"caprompt": json.dumps(metadata)}))


def save_checkpoint(path: Path, epoch: int, student: Student, optimizer: Optimizer) -> None:
    """Write the state to resume from, atomically.

    Random streams are seeded by the epoch and need no saving.
    """
    content = io.BytesIO()
    torch.save({"epoch": epoch, "student": student.state_dict(), "optimizer": optimizer.state_dict()}, content)
    write_bytes(path, content.getvalue())


def load_checkpoint(path: Path, student: Student, optimizer: Optimizer) -> int:
    """Load student and optimizer; return the number of finished epochs."""
    saved = torch.load(path, weights_only=True)
    try:
        student.load_state_dict(saved["student"])
        optimizer.load_state_dict(saved["optimizer"])
    except (RuntimeError, ValueError) as error:
        raise InputError(
            f"'{path}' was written with other options: {error}; use the same ones, or train without --resume"
        ) from error
    return int(saved["epoch"])


def run_epoch(
    args: Namespace, epoch: int, student: Student, teacher: Teacher | None, optimizer: Optimizer, images: Tensor, labels: Tensor
) -> dict[str, float]:
    """Train on every image once, shuffled and augmented by the epoch's seed.

    Return the mean of each loss.
    """
    generator = torch.Generator(images.device).manual_seed(1000 * args.seed + epoch)
    order = torch.randperm(len(images), device=images.device, generator=generator)
    batches = order.split(args.batch_size)[: max(1, len(images) // args.batch_size)]
    total = dict.fromkeys(MODES[args.mode], torch.zeros((), device=images.device))
    for step, indices in enumerate(batches):
        for group in optimizer.param_groups:
            group["lr"] = args.lr * schedule(epoch + step / len(batches), args.epochs)
        views, share = mix(augment(images[indices], args.smallest_crop, generator), args.mix, generator)
        with torch.autocast(images.device.type, torch.bfloat16, enabled=images.is_cuda):
            losses = compute_losses(student, teacher, views, labels[indices], share)
        optimizer.zero_grad()
        torch.autograd.backward(torch.stack([losses[name] for name in total]).sum())
        nn.utils.clip_grad_norm_(student.parameters(), 1.0)
        optimizer.step()
        total = {name: value + losses[name].detach() for name, value in total.items()}
    return {name: value.item() / len(batches) for name, value in total.items()}


def validate(vit: ViT, train: Samples, train_images: Tensor, test_folder: Path) -> str:
    """Return a sentence with the nearest-class-mean accuracy on the test split."""
    if not test_folder.is_dir():
        return "no test split to validate on"
    test = read_source(test_folder).select_classes(train.classes)
    test_images, device = load_images(test, train_images.shape[2]), train_images.device
    train_features, test_features = (
        compute_features(
            vit, (normalize(batch.to(device).float() / 255, IMAGENET_MEAN, IMAGENET_STD) for batch in images.split(512))
        ).cpu()
        for images in (train_images, test_images)
    )
    train_labels, test_labels = (encode_labels(samples, train.classes) for samples in (train, test))
    accuracy = nearest_mean_accuracy(train_features, train_labels, test_features, test_labels)
    return f"nearest class mean on {len(test)} test images: {accuracy:.2f} %"


def parse_arguments(arguments: Sequence[str] | None) -> Namespace:
    """Parse the command line; the defaults are those of the packaged backbone."""
    parser = ArgumentParser(description=__doc__, formatter_class=RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=Path, required=True, help="folder with train/ and optionally test/")
    parser.add_argument("--teacher", type=Path, help="weights file of a plain ViT")
    parser.add_argument("--mode", choices=MODES, help="default: distil with a teacher, supervised without")
    parser.add_argument("--out", type=Path, required=True, help="the .safetensors file to write")
    for name, value in {**ARCHITECTURE, **TRAINING}.items():
        parser.add_argument(f"--{name}", type=type(value), default=value, help=f"default: {value}")
    parser.add_argument("--resume", action="store_true", help="continue from OUT.checkpoint if it exists")
    parser.add_argument("--compile", action="store_true", help="torch.compile both networks")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    args = parser.parse_args(arguments)
    args.mode = args.mode or ("distil" if args.teacher else "supervised")
    if args.mode != "supervised" and not args.teacher:
        parser.error(f"--mode {args.mode} needs --teacher")
    return args


def main(arguments: Sequence[str] | None = None) -> None:
    """Train, print a line per epoch, write the backbone."""
    args = parse_arguments(arguments)
    torch.manual_seed(args.seed)
    torch.set_float32_matmul_precision("high")
    train = read_source(args.images / "train")
    images, labels = load_images(train, args.size).to(args.device), encode_labels(train, train.classes).to(args.device)
    config = ViTConfig(args.size, args.patch, args.width, args.depth, args.heads, mlp_width=4 * args.width)
    statistics_images = images[torch.randperm(len(images))[:1024].to(args.device)]
    teacher = Teacher(args.teacher, config, statistics_images) if args.mode != "supervised" else None
    student = Student(random_vit(config, args.seed), len(train.classes), teacher).to(args.device)
    optimizer = make_optimizer(student, args.lr, args.weight_decay)
    checkpoint = args.out.with_name(args.out.name + ".checkpoint")
    first_epoch = load_checkpoint(checkpoint, student, optimizer) if args.resume and checkpoint.is_file() else 0
    for network in filter(None, (student, teacher)) if args.compile else ():
        network.compile()

    for epoch in range(first_epoch, args.epochs):
        start = time.perf_counter()
        means = run_epoch(args, epoch, student, teacher, optimizer, images, labels)
        line = "  ".join(f"{name} {value:.4f}" for name, value in means.items())
        print(f"epoch {epoch + 1}/{args.epochs}  {line}  {len(images) / (time.perf_counter() - start):.0f} images/s", flush=True)
        if (epoch + 1) % args.every == 0 and epoch + 1 < args.epochs:
            save_checkpoint(checkpoint, epoch + 1, student, optimizer)
            print(validate(student.vit, train, images, args.images / "test"), flush=True)
    save_backbone(student.vit, args.out)
    print(f"{args.out}: {args.out.stat().st_size} bytes; {validate(student.vit, train, images, args.images / 'test')}")


if __name__ == "__main__":
    try:
        main()
    except CapromptError as error:
        raise SystemExit(f"error: {error}") from error
