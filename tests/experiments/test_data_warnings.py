from __future__ import annotations

import pytest

from caprompt.backbones.registry import MODELS
from caprompt.backbones.weights import DEFAULT_BACKBONE
from caprompt.experiments.data_warnings import find_pretraining_labels, make_duplicate_warning, make_pretraining_warning


def test_duplicate_warning() -> None:
    assert make_duplicate_warning(0, 100) is None
    assert make_duplicate_warning(3, 1000) == "3 of the 1,000 test images are also among the training images"


@pytest.mark.parametrize(
    ("tags", "labels"),
    [
        (("orig_in21k", "augreg_in21k"), "ImageNet-21k"),
        (("fb_in1k",), "ImageNet-1k"),
        (("augreg_in21k_ft_in1k",), "ImageNet-21k and ImageNet-1k"),
        (("dino", "ibot", "mae", "mocov3", "lvd142m", "openai"), None),
    ],
)
def test_pretraining_labels_of_registered_backbones(tags: tuple[str, ...], labels: str | None) -> None:
    assert {find_pretraining_labels(name) for name, model in MODELS.items() if model.tag in tags} == {labels}


def test_tags_above_are_those_of_all_registered_backbones() -> None:
    tags = ["orig_in21k", "augreg_in21k", "augreg_in21k_ft_in1k", "fb_in1k", "dino", "ibot", "mae", "mocov3", "lvd142m", "openai"]
    assert {model.tag for model in MODELS.values()} == set(tags)


def test_pretraining_warning_only_for_known_overlaps() -> None:
    supervised = "vit_base_patch16_224.orig_in21k"
    assert "labels of ImageNet-21k, which include the classes of ImageNet-R" in (
        make_pretraining_warning(supervised, "imagenet-r") or ""
    )
    assert "classes of Tiny-ImageNet" in (make_pretraining_warning("deit_tiny_patch16_224", "tiny-imagenet") or "")
    assert "through its teacher" in (make_pretraining_warning(DEFAULT_BACKBONE, "tiny-imagenet") or "")
    for dataset in ("cifar100", "cub200", "digits", "photos/imagenet-r", ""):
        assert make_pretraining_warning(supervised, dataset) is None
    for backbone in ("vit_base_patch16_224.dino", "vit_base_patch16_clip_224.openai", "my_weights"):
        assert make_pretraining_warning(backbone, "imagenet-r") is None
