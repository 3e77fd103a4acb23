"""Reasons to doubt a figure, each a sentence: test images that were trained on, and labels that the backbone was taught.

Of labels, only what is certain is said. ImageNet-R and Tiny-ImageNet took their classes from ImageNet-1k, and ImageNet-21k has
those too. CIFAR-100 and CUB-200 share some classes with ImageNet by name, but which of them are the same is a matter of opinion.
"""

from __future__ import annotations

__all__ = ["duplicate_warning", "pretraining_labels", "pretraining_warning"]

IMAGENET_CLASSES = {"imagenet-r": "ImageNet-R", "tiny-imagenet": "Tiny-ImageNet"}
EMBEDDED = "tin200_distilled"  # see MODEL_CARD.md


def duplicate_warning(repeated: int, images: int) -> str | None:
    """What to say where test images are among the training images.

    >>> duplicate_warning(10, 10_000)
    '10 of the 10,000 test images are among the training images too'
    """
    return f"{repeated:,} of the {images:,} test images are among the training images too" if repeated else None


def pretraining_labels(backbone: str) -> str | None:
    """Whose labels a backbone was trained with, by its name; None for self-supervised ones, captions, and where nobody knows.

    >>> pretraining_labels("vit_base_patch16_224.augreg_in21k_ft_in1k"), pretraining_labels("deit_tiny_patch16_224")
    ('ImageNet-21k and ImageNet-1k', 'ImageNet-1k')
    >>> pretraining_labels("vit_base_patch16_224.dino"), pretraining_labels("vit_base_patch16_clip_224.openai")
    (None, None)
    """
    tag = backbone.partition(".")[2]
    if tag == EMBEDDED:
        return "ImageNet-1k (through its teacher, on pictures of Tiny-ImageNet)"
    parts = set(tag.split("_"))
    taught = [label for part, label in (("in21k", "ImageNet-21k"), ("in1k", "ImageNet-1k")) if part in parts]
    if not taught and backbone.startswith("deit_"):
        taught = ["ImageNet-1k"]  # DeiT files go about without their tag
    return " and ".join(taught) or None


def pretraining_warning(backbone: str, dataset: str) -> str | None:
    """What to say where a backbone was taught the classes of a data set before the first task."""
    title, taught = IMAGENET_CLASSES.get(dataset), pretraining_labels(backbone)
    if title is None or taught is None:
        return None
    return f"the backbone '{backbone}' was trained with the labels of {taught}, and {title}'s classes are among them: none is new"
