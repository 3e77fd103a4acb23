"""Pre-trained ViTs by name: architecture, normalization, license, and location of the weights file.

Names are timm's, with the weights tag after the dot. A file is searched for in this order:

1. `$CAPROMPT_BACKBONES/<name>.<suffix>`, by default `~/.cache/caprompt/backbones/<name>.<suffix>`,
   in any known layout
2. the Hugging Face cache
3. the Hugging Face hub, if it can be reached

    model = MODELS["vit_base_patch16_224.orig_in21k"]
    path = find_file(model)

Licenses are those of the authors of the weights. Sizes and hashes are those of the files on the hub.
"""

from __future__ import annotations

import os
import re
import socket
from dataclasses import dataclass, replace
from pathlib import Path
from urllib.parse import urlsplit
from urllib.request import getproxies

from caprompt.backbones.constants import CLIP_MEAN, CLIP_STD, HALF_MEAN, HALF_STD, IMAGENET_MEAN, IMAGENET_STD
from caprompt.backbones.vit import ViTConfig
from caprompt.errors import InputError, first_line
from caprompt.utils.files import compute_sha256
from caprompt.utils.paths import expand_user

__all__ = [
    "MODELS",
    "SUFFIXES",
    "Model",
    "find_file",
    "find_local_file",
    "get_backbones_directory",
    "identify_model",
    "is_hub_reachable",
]

SUFFIXES = (".safetensors", ".npz", ".pth", ".pt", ".bin")
CONNECT_TIMEOUT = 3  # seconds until the hub counts as unreachable


@dataclass(frozen=True)
class Model:
    """One set of pre-trained weights."""

    name: str
    config: ViTConfig
    mean: tuple[float, float, float] = IMAGENET_MEAN
    std: tuple[float, float, float] = IMAGENET_STD
    repo: str | None = None  # on the Hugging Face hub
    file: str = "model.safetensors"  # in that repository, or on the page of its authors
    page: str = ""  # where the authors publish a file that is not on the hub
    license: str = "unknown"
    megabytes: int | None = None  # of the file on the hub, in millions of bytes
    sha256: str = ""  # of the file on the hub, where it is recorded here

    @property
    def tag(self) -> str:
        """Which training the weights come from: the part of the name after the first dot."""
        return self.name.partition(".")[2]


TINY = ViTConfig(image_size=224, patch_size=16, width=192, depth=12, heads=3, mlp_width=768)
SMALL = ViTConfig(image_size=224, patch_size=16, width=384, depth=12, heads=6, mlp_width=1536)
BASE = ViTConfig(image_size=224, patch_size=16, width=768, depth=12, heads=12, mlp_width=3072)
CLIP_BASE = replace(BASE, norm_eps=1e-5, pre_norm=True, quick_gelu=True, patch_bias=False)
APACHE, NON_COMMERCIAL = "Apache-2.0", "CC-BY-NC-4.0"
IBOT = ("checkpoint_teacher.pth", "https://github.com/bytedance/ibot (ViT-B/16, teacher)")
MOCO = ("vit-b-300ep.pth.tar", "https://github.com/facebookresearch/moco-v3 (ViT-Base, 300 epochs)")


def _dinov2_config(config: ViTConfig, registers: int = 0) -> ViTConfig:
    """Return DINOv2's variant of an architecture.

    With registers the class token has no position.
    """
    return replace(config, image_size=518, patch_size=14, layer_scale=True, registers=registers, class_position=not registers)


def _timm_model(name: str, config: ViTConfig, megabytes: int, *, license: str = APACHE, sha256: str = "") -> Model:
    """Return a model whose weights timm publishes on the hub under its own name, with ImageNet's normalization."""
    return Model(name, config, repo=f"timm/{name}", license=license, megabytes=megabytes, sha256=sha256)


def _google_model(name: str, megabytes: int) -> Model:
    """Return a ViT-B/16 of Google's, which timm publishes on the hub."""
    return replace(_timm_model(name, BASE, megabytes), mean=HALF_MEAN, std=HALF_STD)


MODELS = {
    model.name: model
    for model in (
        _google_model("vit_base_patch16_224.orig_in21k", 343),
        _google_model("vit_base_patch16_224.augreg_in21k", 410),
        _google_model("vit_base_patch16_224.augreg_in21k_ft_in1k", 346),
        _timm_model("vit_base_patch16_224.dino", BASE, 343),
        Model("vit_base_patch16_224.ibot", BASE, file=IBOT[0], page=IBOT[1], license=APACHE),
        _timm_model("vit_base_patch16_224.mae", BASE, 343, license=NON_COMMERCIAL),
        Model("vit_base_patch16_224.mocov3", BASE, file=MOCO[0], page=MOCO[1], license=NON_COMMERCIAL),
        _timm_model(
            "deit_tiny_patch16_224.fb_in1k",
            TINY,
            23,
            sha256="21d4764d94f6c3ffdb6da3581115a0a1ee2d505537d96883b540e54766407c9e",
        ),
        _timm_model(
            "deit_small_patch16_224.fb_in1k",
            SMALL,
            88,
            sha256="1e747b4a8d0df2cfbd3c450e8c97685d867448ab0c2ddbfb34b6885f5cb23e5b",
        ),
        _timm_model(
            "deit_base_patch16_224.fb_in1k",
            BASE,
            346,
            sha256="cd2da27b74ed7f68b599f16c77af3e1e80f01c75f9ad96029d22ce747a247e8e",
        ),
        _timm_model("vit_small_patch14_dinov2.lvd142m", _dinov2_config(SMALL), 88),
        _timm_model("vit_base_patch14_dinov2.lvd142m", _dinov2_config(BASE), 346),
        _timm_model("vit_small_patch14_reg4_dinov2.lvd142m", _dinov2_config(SMALL, registers=4), 88),
        _timm_model("vit_base_patch14_reg4_dinov2.lvd142m", _dinov2_config(BASE, registers=4), 346),
        Model(
            "vit_base_patch16_clip_224.openai",
            CLIP_BASE,
            CLIP_MEAN,
            CLIP_STD,
            repo="timm/vit_base_patch16_clip_224.openai",
            file="open_clip_model.safetensors",  # with the text tower, which is not read
            license="MIT",
            megabytes=599,
            sha256="4b8699299b1e8997753c64b052ba32031449d5d853f55a039148560ee02b820f",
        ),
    )
}


def get_backbones_directory() -> Path:
    """Return the directory that users put weights files into."""
    return expand_user(os.environ.get("CAPROMPT_BACKBONES") or "~/.cache/caprompt/backbones")


def find_local_file(model: Model) -> Path | None:
    """Return the model's file if it is on this machine."""
    for suffix in SUFFIXES:
        if (path := get_backbones_directory() / f"{model.name}{suffix}").is_file():
            return path
    if model.repo is None:
        return None
    from huggingface_hub import try_to_load_from_cache

    cached = try_to_load_from_cache(model.repo, model.file)
    return Path(cached) if isinstance(cached, str) else None


def identify_model(path: Path) -> Model | None:
    """Return the model of a file, by the file's name or its folder in the hub's cache."""
    cached = (model for model in MODELS.values() if model.repo and f"models--{model.repo.replace('/', '--')}" in path.parts)
    return MODELS.get(path.stem) or next(cached, None)


def find_file(model: Model) -> Path:
    """Return the model's file, downloaded from the hub if necessary.

    The error says which file to put where.
    """
    if (path := find_local_file(model)) is not None:
        return path
    if model.repo is None:
        raise InputError(f"the weights of '{model.name}' are not on the hub; {_explain_download(model)}")
    if not is_hub_reachable():
        raise InputError(
            f"the weights of '{model.name}' are not on this machine and the hub cannot be reached; {_explain_download(model)}"
        )
    from huggingface_hub import errors

    try:
        path = _download(model.repo, model.file)
    # Transport errors are HTTPErrors with newer versions of the library, and OSErrors with older ones.
    except (errors.HTTPError, OSError, ValueError) as error:  # type: ignore[attr-defined]
        raise InputError(
            f"the weights of '{model.name}' could not be downloaded ({first_line(error)}); {_explain_download(model)}"
        ) from error
    _check_download(model, path)
    return path


def _download(repo: str, file: str) -> Path:
    """Return the path of a file of the hub in the local cache; where its connection breaks once, it is continued."""
    from huggingface_hub import errors, hf_hub_download

    try:
        return Path(hf_hub_download(repo, file))
    except OSError as error:  # of older versions of the library; newer ones continue by themselves
        if isinstance(error, errors.HfHubHTTPError):
            raise
        return Path(hf_hub_download(repo, file))


def _check_download(model: Model, path: Path) -> None:
    """Delete a downloaded file and raise an error if it does not have the hash that is recorded here, or else by the hub."""
    content = path.resolve()  # in the cache, a link to a file that is named by the hash that the hub has of large files
    expected = model.sha256 or (content.name if re.fullmatch(r"[0-9a-f]{64}", content.name) else "")
    if expected and (actual := compute_sha256(path)) != expected:
        for damaged in (path, content):
            damaged.unlink(missing_ok=True)
        raise InputError(
            f"the download of '{model.name}' was deleted: its SHA-256 is {actual[:12]}... and not {expected[:12]}...; "
            f"repeat it, or {_explain_download(model)}"
        )


def is_hub_reachable() -> bool:
    """Return whether the hub is reachable; huggingface_hub itself would retry for half a minute."""
    from huggingface_hub import constants

    if constants.HF_HUB_OFFLINE:
        return False
    if getproxies():  # behind a proxy a direct connection proves nothing
        return True
    hub = urlsplit(constants.ENDPOINT)
    try:
        port = hub.port or (80 if hub.scheme == "http" else 443)
        socket.create_connection((hub.hostname or "", port), timeout=CONNECT_TIMEOUT).close()
    except OSError:
        return False
    return True


def _explain_download(model: Model) -> str:
    """Say which file to put where."""
    suffix = next((suffix for suffix in SUFFIXES if model.file.endswith(suffix)), ".pth")
    source = f"from https://huggingface.co/{model.repo}" if model.repo else f"from {model.page}"
    return f"put '{model.file}' {source} at '{get_backbones_directory() / (model.name + suffix)}'"
