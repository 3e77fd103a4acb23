"""Reasons to doubt an accuracy, each a sentence: test images that were trained on, and labels that the backbone was trained with.

Only overlaps of labels that are certain are reported. ImageNet-R and Tiny-ImageNet took their classes from ImageNet-1k, and
ImageNet-21k has those too. CIFAR-100 and CUB-200 share some class names with ImageNet, but which of them mean the same is a matter
of opinion.
"""

from __future__ import annotations

__all__ = ["find_pretraining_labels", "make_duplicate_warning", "make_pretraining_warning"]

IMAGENET_CLASSES = {"imagenet-r": "ImageNet-R", "tiny-imagenet": "Tiny-ImageNet"}
EMBEDDED = "tin200_distilled"  # see MODEL_CARD.md


def make_duplicate_warning(repeated: int, images: int) -> str | None:
    """Return a warning if test images are among the training images.

    >>> make_duplicate_warning(10, 10_000)
    '10 of the 10,000 test images are also among the training images'
    """
    return f"{repeated:,} of the {images:,} test images are also among the training images" if repeated else None


def find_pretraining_labels(backbone: str) -> str | None:
    """Return which labels a backbone was trained with, by its name; None if self-supervised, trained on captions, or unknown.

    >>> find_pretraining_labels("vit_base_patch16_224.augreg_in21k_ft_in1k"), find_pretraining_labels("deit_tiny_patch16_224")
    ('ImageNet-21k and ImageNet-1k', 'ImageNet-1k')
    >>> find_pretraining_labels("vit_base_patch16_224.dino"), find_pretraining_labels("vit_base_patch16_clip_224.openai")
    (None, None)
    """
    tag = backbone.partition(".")[2]
    if tag == EMBEDDED:
        return "ImageNet-1k (through its teacher, on images of Tiny-ImageNet)"
    parts = set(tag.split("_"))
    labels = [label for part, label in (("in21k", "ImageNet-21k"), ("in1k", "ImageNet-1k")) if part in parts]
    if not labels and backbone.startswith("deit_"):
        labels = ["ImageNet-1k"]  # DeiT files are often renamed without their tag
    return " and ".join(labels) or None


def make_pretraining_warning(backbone: str, dataset: str) -> str | None:
    """Return a warning if a backbone was trained with the classes of a dataset before the first task."""
    title, labels = IMAGENET_CLASSES.get(dataset), find_pretraining_labels(backbone)
    if title is None or labels is None:
        return None
    return f"the backbone '{backbone}' was trained with the labels of {labels}, which include the classes of {title}"
