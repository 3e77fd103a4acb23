"""Normalization of images: RGB means and standard deviations, for values in 0..1."""

from __future__ import annotations

__all__ = [
    "CIFAR100_MEAN",
    "CIFAR100_STD",
    "CLIP_MEAN",
    "CLIP_STD",
    "HALF_MEAN",
    "HALF_STD",
    "IMAGENET_MEAN",
    "IMAGENET_STD",
    "NORMALIZATIONS",
]

IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)
HALF_MEAN = (0.5, 0.5, 0.5)  # Google's ViTs; timm's IMAGENET_INCEPTION_MEAN
HALF_STD = (0.5, 0.5, 0.5)
CLIP_MEAN = (0.48145466, 0.4578275, 0.40821073)
CLIP_STD = (0.26862954, 0.26130258, 0.27577711)
CIFAR100_MEAN = (0.5071, 0.4867, 0.4408)
CIFAR100_STD = (0.2675, 0.2565, 0.2761)

# Values of the option `normalise` -> (mean, std); every other value means the backbone's own.
NORMALIZATIONS = {
    "none": ((0.0, 0.0, 0.0), (1.0, 1.0, 1.0)),
    "cifar100": (CIFAR100_MEAN, CIFAR100_STD),
    "imagenet": (IMAGENET_MEAN, IMAGENET_STD),
}
