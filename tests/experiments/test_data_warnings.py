from __future__ import annotations

import pytest

from caprompt.backbones.registry import MODELS
from caprompt.backbones.weights import DEFAULT_BACKBONE
from caprompt.experiments.data_warnings import duplicate_warning, pretraining_labels, pretraining_warning


def test_repeated_images() -> None:
    assert duplicate_warning(0, 100) is None
    assert duplicate_warning(3, 1000) == "3 of the 1,000 test images are also among the training images"


@pytest.mark.parametrize(
    ("tags", "labels"),
    [
        (("orig_in21k", "augreg_in21k"), "ImageNet-21k"),
        (("fb_in1k",), "ImageNet-1k"),
        (("augreg_in21k_ft_in1k",), "ImageNet-21k and ImageNet-1k"),
        (("dino", "ibot", "mae", "mocov3", "lvd142m", "openai"), None),
    ],
)
def test_every_known_backbone_has_its_labels(tags: tuple[str, ...], labels: str | None) -> None:
    found = {pretraining_labels(name) for name, model in MODELS.items() if model.tag in tags}
    assert found == {labels}


def test_no_known_backbone_is_left_out_above() -> None:
    said = ["orig_in21k", "augreg_in21k", "augreg_in21k_ft_in1k", "fb_in1k", "dino", "ibot", "mae", "mocov3", "lvd142m", "openai"]
    assert {model.tag for model in MODELS.values()} == set(said)


def test_only_what_is_certain_is_said() -> None:
    supervised = "vit_base_patch16_224.orig_in21k"
    assert "labels of ImageNet-21k, which include the classes of ImageNet-R" in (pretraining_warning(supervised, "imagenet-r") or "")
    assert "classes of Tiny-ImageNet" in (pretraining_warning("deit_tiny_patch16_224", "tiny-imagenet") or "")
    assert "through its teacher" in (pretraining_warning(DEFAULT_BACKBONE, "tiny-imagenet") or "")
    for dataset in ("cifar100", "cub200", "digits", "photos/imagenet-r", ""):
        assert pretraining_warning(supervised, dataset) is None
    for backbone in ("vit_base_patch16_224.dino", "vit_base_patch16_clip_224.openai", "my_weights"):
        assert pretraining_warning(backbone, "imagenet-r") is None
