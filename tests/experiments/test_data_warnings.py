from __future__ import annotations

import pytest

from caprompt.backbones.registry import MODELS
from caprompt.backbones.weights import DEFAULT_BACKBONE
from caprompt.experiments.data_warnings import labels_seen, labels_taught, repeated_images


def test_repeated_images() -> None:
    assert repeated_images(0, 100) is None
    assert repeated_images(3, 1000) == "3 of the 1,000 test images are among the training images too"


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
    found = {labels_taught(name) for name, model in MODELS.items() if model.tag in tags}
    assert found == {labels}


def test_no_known_backbone_is_left_out_above() -> None:
    said = ["orig_in21k", "augreg_in21k", "augreg_in21k_ft_in1k", "fb_in1k", "dino", "ibot", "mae", "mocov3", "lvd142m", "openai"]
    assert {model.tag for model in MODELS.values()} == set(said)


def test_only_what_is_certain_is_said() -> None:
    supervised = "vit_base_patch16_224.orig_in21k"
    assert "labels of ImageNet-21k, and ImageNet-R's classes" in (labels_seen(supervised, "imagenet-r") or "")
    assert "Tiny-ImageNet's classes" in (labels_seen("deit_tiny_patch16_224", "tiny-imagenet") or "")
    assert "through its teacher" in (labels_seen(DEFAULT_BACKBONE, "tiny-imagenet") or "")
    for dataset in ("cifar100", "cub200", "digits", "photos/imagenet-r", ""):
        assert labels_seen(supervised, dataset) is None
    for backbone in ("vit_base_patch16_224.dino", "vit_base_patch16_clip_224.openai", "my_weights"):
        assert labels_seen(backbone, "imagenet-r") is None
