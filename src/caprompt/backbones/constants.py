"""Means and standard deviations that images are normalized with."""

from __future__ import annotations

__all__ = ["CIFAR100", "CLIP_MEAN", "CLIP_STD", "HALF", "IMAGENET_MEAN", "IMAGENET_STD", "UNCHANGED"]

IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)

HALF = (0.5, 0.5, 0.5)
CLIP_MEAN = (0.48145466, 0.4578275, 0.40821073)
CLIP_STD = (0.26862954, 0.26130258, 0.27577711)

UNCHANGED = ((0.0, 0.0, 0.0), (1.0, 1.0, 1.0))
CIFAR100 = ((0.5071, 0.4867, 0.4408), (0.2675, 0.2565, 0.2761))
