"""Pre-trained ViTs known by name: what they are, how their images are prepared, and where their file is found.

Names are timm's, with the weights tag after the dot. A file is looked for in this order:

1. `$CAPROMPT_BACKBONES/<name>.<suffix>`, by default `~/.cache/caprompt/backbones/<name>.<suffix>`, in any known layout
2. the Hugging Face cache
3. the Hugging Face hub, if it can be reached

    model = MODELS["vit_base_patch16_224.orig_in21k"]
    path = find_file(model)
"""

from __future__ import annotations

import os
import socket
from dataclasses import dataclass, replace
from pathlib import Path
from urllib.parse import urlsplit
from urllib.request import getproxies

from caprompt.backbones.constants import CLIP_MEAN, CLIP_STD, HALF, IMAGENET_MEAN, IMAGENET_STD
from caprompt.backbones.vit import ViTConfig
from caprompt.errors import InputError

__all__ = ["MODELS", "SUFFIXES", "Model", "backbones_directory", "find_file", "find_local_file", "model_of_file"]

SUFFIXES = (".safetensors", ".npz", ".pth", ".pt", ".bin")
PATIENCE = 3  # seconds until the hub counts as out of reach


@dataclass(frozen=True)
class Model:
    """One set of pre-trained weights."""

    name: str
    config: ViTConfig
    mean: tuple[float, float, float] = IMAGENET_MEAN
    std: tuple[float, float, float] = IMAGENET_STD
    repo: str | None = None  # on the Hugging Face hub
    file: str = "model.safetensors"  # in that repository; without one, what its authors call it
    home: str = ""  # where the authors publish a file that no hub repository of theirs holds

    @property
    def tag(self) -> str:
        """Which training the weights come from: the part of the name after the dot."""
        return self.name.partition(".")[2]


TINY = ViTConfig(image_size=224, patch_size=16, width=192, depth=12, heads=3, mlp_width=768)
SMALL = ViTConfig(image_size=224, patch_size=16, width=384, depth=12, heads=6, mlp_width=1536)
BASE = ViTConfig(image_size=224, patch_size=16, width=768, depth=12, heads=12, mlp_width=3072)
CLIP_BASE = replace(BASE, norm_eps=1e-5, pre_norm=True, quick_gelu=True, patch_bias=False)
IBOT = ("checkpoint_teacher.pth", "https://github.com/bytedance/ibot (ViT-B/16, teacher)")
MOCO = ("vit-b-300ep.pth.tar", "https://github.com/facebookresearch/moco-v3 (ViT-Base, 300 epochs)")


def dinov2(config: ViTConfig, registers: int = 0) -> ViTConfig:
    """DINOv2's changes: LayerScale, patches of 14, pictures of 518, and with registers no position for the class token."""
    return replace(config, image_size=518, patch_size=14, layer_scale=True, registers=registers, class_position=not registers)


def timm(
    name: str, config: ViTConfig, mean: tuple[float, float, float] = IMAGENET_MEAN, std: tuple[float, float, float] = IMAGENET_STD
) -> Model:
    """Weights that timm keeps on the hub under their own name."""
    return Model(name, config, mean, std, repo=f"timm/{name}")


MODELS = {
    model.name: model
    for model in (
        timm("vit_base_patch16_224.orig_in21k", BASE, HALF, HALF),
        timm("vit_base_patch16_224.augreg_in21k", BASE, HALF, HALF),
        timm("vit_base_patch16_224.augreg_in21k_ft_in1k", BASE, HALF, HALF),
        timm("vit_base_patch16_224.dino", BASE),
        Model("vit_base_patch16_224.ibot", BASE, file=IBOT[0], home=IBOT[1]),
        timm("vit_base_patch16_224.mae", BASE),
        Model("vit_base_patch16_224.mocov3", BASE, file=MOCO[0], home=MOCO[1]),
        timm("deit_tiny_patch16_224.fb_in1k", TINY),
        timm("deit_small_patch16_224.fb_in1k", SMALL),
        timm("deit_base_patch16_224.fb_in1k", BASE),
        timm("vit_small_patch14_dinov2.lvd142m", dinov2(SMALL)),
        timm("vit_base_patch14_dinov2.lvd142m", dinov2(BASE)),
        timm("vit_small_patch14_reg4_dinov2.lvd142m", dinov2(SMALL, registers=4)),
        timm("vit_base_patch14_reg4_dinov2.lvd142m", dinov2(BASE, registers=4)),
        timm("vit_base_patch16_clip_224.openai", CLIP_BASE, CLIP_MEAN, CLIP_STD),
    )
}


def backbones_directory() -> Path:
    """Where people put weights files themselves."""
    return Path(os.environ.get("CAPROMPT_BACKBONES") or "~/.cache/caprompt/backbones").expanduser()


def find_local_file(model: Model) -> Path | None:
    """The model's file, if it is already on this machine."""
    for suffix in SUFFIXES:
        if (own := backbones_directory() / f"{model.name}{suffix}").is_file():
            return own
    if model.repo is None:
        return None
    from huggingface_hub import try_to_load_from_cache

    cached = try_to_load_from_cache(model.repo, model.file)
    return Path(cached) if isinstance(cached, str) else None


def model_of_file(path: Path) -> Model | None:
    """The model that a file belongs to, by its own name or by its folder in the hub's cache."""
    cached = (model for model in MODELS.values() if model.repo and f"models--{model.repo.replace('/', '--')}" in path.parts)
    return MODELS.get(path.stem) or next(cached, None)


def find_file(model: Model) -> Path:
    """The model's file, fetched from the hub if need be; else an error that says which file to put where."""
    if (path := find_local_file(model)) is not None:
        return path
    if model.repo is None:
        raise InputError(f"the weights of '{model.name}' are on no hub: {advice(model)}")
    if not hub_is_reachable():
        raise InputError(f"the weights of '{model.name}' are not on this machine and the hub is out of reach: {advice(model)}")
    from huggingface_hub import hf_hub_download
    from huggingface_hub.errors import HfHubHTTPError

    try:
        return Path(hf_hub_download(model.repo, model.file))
    except (HfHubHTTPError, OSError, ValueError) as error:
        reason = str(error).strip().partition("\n")[0] or type(error).__name__
        raise InputError(f"the weights of '{model.name}' could not be fetched ({reason}): {advice(model)}") from error


def hub_is_reachable() -> bool:
    """Is there any use in asking? The hub's own program would try for half a minute."""
    from huggingface_hub import constants

    if constants.HF_HUB_OFFLINE:
        return False
    if getproxies():  # it may be out of our sight and yet within theirs
        return True
    hub = urlsplit(constants.ENDPOINT)
    try:
        port = hub.port or (80 if hub.scheme == "http" else 443)
        socket.create_connection((hub.hostname or "", port), timeout=PATIENCE).close()
    except OSError:
        return False
    return True


def advice(model: Model) -> str:
    """Which file to put where."""
    suffix = next((each for each in SUFFIXES if model.file.endswith(each)), ".pth")
    source = f"from https://huggingface.co/{model.repo}" if model.repo else f"from {model.home}"
    return f"put '{model.file}' {source} at '{backbones_directory() / (model.name + suffix)}'"
