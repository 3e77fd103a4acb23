"""CPrompt: consistent prompting (Gao et al., CVPR 2024, arXiv:2403.08568).

Every task t has prompt tokens P_t, prepended to the input of the first layer and of a later one.
A class c has a key k_c. The query q of an image is its class token from a pass without prompts;
P_t is selected if the nearest key belongs to a class of task t.
Training knows which head rows compete and which prompt is right, prediction does not.
Two losses, `smooth` and `ce`, make training consistent with prediction:

    aux     CE(auxiliary_t(f_t), y)     f_t: the features under P_t; this head is only used here
    smooth  mean over earlier tasks k of H(softmax(o_k / tau), softmax(o_k)),  o_k = head_k(f_t),
            target without gradient, tau = 1 where max head_t(f_t) > max o_k + margin, else
            `temperature`: heads of earlier tasks should be less confident on new images
    ce      CE(head_t(f_m), y), m sampled from all tasks so far: the head should predict well under
            whichever prompt is selected
    key     CE(cos(q, k_1 ... k_C), y)

Prompts, keys and head rows of earlier tasks are frozen (`old_heads`). As in the authors' code, the
class token is taken before the last norm.
Images of known classes contribute to `ce` (in the head rows of their task) and to `key`.

Shapes: B images, T tasks, C classes, L prompted layers, n rows, D width.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, ClassVar, Literal

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor

from caprompt.backbones.vit import Stem, ViT
from caprompt.methods.components.device_random import DeviceRandom
from caprompt.methods.components.growing_rows import GrowingRows, draw_orthonormal_rows
from caprompt.methods.components.heads import LinearHead, NewestRowsHead, cosines, linear_init
from caprompt.methods.components.tokens import Tokens
from caprompt.methods.options import PromptOptions
from caprompt.methods.registry import register
from caprompt.methods.templates import SelectedPromptMethod

__all__ = ["CPrompt", "CPromptOptions", "smoothing_loss"]


class CPromptOptions(PromptOptions):
    """Options of the prompts and of the smoothing of earlier heads."""

    length: int = Field(50, ge=1, description="rows (tokens) of each of a task's two prompts")
    second_layer: int = Field(5, ge=1, description="index of the second prompted layer; the last one of a shallower backbone")
    temperature: float = Field(1.2, ge=1, description="softmax temperature of the smoothing target on new images")
    margin: float = Field(
        0.0, ge=0, description="smooth only where the newest head's top logit leads an earlier head's by at most this"
    )
    smooth: float = Field(1.0, ge=0, description="weight of the smoothing loss; 0 disables it")
    old_heads: Literal["frozen", "trained"] = Field(
        "frozen",
        description="head rows of earlier tasks: frozen, or trained, so that further images of known classes and weight decay "
        "change them",
    )

    before_added: ClassVar[Mapping[str, Any]] = MappingProxyType({"old_heads": "trained"})


@register("cprompt")
class CPrompt(SelectedPromptMethod):
    """Task prompts selected by class keys, with a head that is also trained under wrong prompts."""

    summary = "task prompts selected by class keys, trained to be consistent with prediction (CVPR 2024)"
    options_class = CPromptOptions
    check_options: ClassVar = {**SelectedPromptMethod.check_options, "length": 4}
    check_variants: ClassVar = ({"margin": 0.2}, {"old_heads": "trained"})
    options: CPromptOptions
    head: LinearHead | NewestRowsHead
    trains_on_known_classes = True

    def __init__(self, vit: ViT, options: CPromptOptions) -> None:
        width = vit.config.width
        super().__init__(vit, options, LinearHead(width) if options.old_heads == "trained" else NewestRowsHead(width))
        self.layers = sorted({0, min(options.second_layer, vit.config.depth - 1)})
        self.prompts = GrowingRows(len(self.layers), options.length, width)  # (T, L, n, D)
        self.keys = GrowingRows(width)  # (C, D)
        self.auxiliary = LinearHead(width)  # of the newest task
        self.chance = DeviceRandom()  # samples prompts; the attribute's name is part of saved models

    def begin_task(self, num_classes: int, generator: torch.Generator) -> None:
        """Add prompts (initialized with the previous ones), orthogonal keys, an auxiliary head."""
        super().begin_task(num_classes, generator)
        self.prompts.append_from_newest(linear_init((1, *self.prompts.newest.shape[1:]), self.vit.config.width, generator))
        self.keys.append(draw_orthonormal_rows(num_classes, self.keys(), generator))
        self.auxiliary = LinearHead(self.vit.config.width).to(self.keys.earlier)
        self.auxiliary.grow(num_classes, generator)
        self.chance.seed(generator)

    def key_similarities(self, stem: Stem) -> Tensor:
        """Compute the cosine of each image's query with every class's key: (B, C)."""
        return cosines(self.vit.forward_class_token(stem).to(self.keys.earlier), self.keys())

    def select_task(self, stem: Stem) -> Tensor:
        return self.task_of_class[self.key_similarities(stem).argmax(dim=1)]

    def extract_features(self, stem: Stem, tasks: Tensor) -> Tensor:
        rows = self.prompts()[tasks].transpose(0, 1)  # (B, L, n, D) -> (L, B, n, D)
        return self.vit.forward_class_token(stem, Tokens(rows, self.layers)).to(self.keys.earlier)

    def explain_indivisible(self) -> str | None:
        """Return why not every image has a loss of its own."""
        return "it draws a random prompt for each image by its place in the batch"

    def loss(self, images: Tensor, labels: Tensor) -> dict[str, Tensor]:
        """Return the four losses; the newest and the sampled prompts share one batched pass."""
        stem, batch, tasks = self.vit.stem(images), len(labels), len(self.task_sizes)
        sampled = self.chance.randint(tasks, batch)
        features = self.extract_features(stem.repeat(2), torch.cat([torch.full_like(sampled, tasks - 1), sampled]))  # (2 B, D)
        under_newest, under_sampled = features.chunk(2)
        # Known classes are excluded from the losses that concern the newest prompt alone.
        is_new = (labels >= self.num_known_classes).to(features)  # (B,)
        local = (labels - self.num_known_classes).clamp_min(0)
        auxiliary = F.cross_entropy(self.auxiliary(under_newest), local, reduction="none")
        parts = {
            "aux": (is_new * auxiliary).mean(),
            "key": F.cross_entropy(self.key_similarities(stem), labels),
            "ce": self.own_task_cross_entropy(self.head(under_sampled), labels),
        }
        if self.num_known_classes and self.options.smooth:
            parts["smooth"] = self.options.smooth * (is_new * self.mean_smoothing_loss(under_newest)).mean()
        return parts

    def mean_smoothing_loss(self, features: Tensor) -> Tensor:
        """Compute the smoothing loss per image, averaged over earlier tasks: (B, D) -> (B,).

        The head gets no gradient.
        """
        logits = F.linear(features, self.head.weight.detach(), self.head.bias.detach())
        *earlier, newest = logits.split(self.task_sizes, dim=1)
        with_classes = [old for old in earlier if old.shape[1]]  # all classes of a task may have been forgotten
        losses = [smoothing_loss(old, newest, self.options.temperature, self.options.margin) for old in with_classes]
        return torch.stack(losses).mean(dim=0)


def smoothing_loss(old: Tensor, newest: Tensor, temperature: float, margin: float) -> Tensor:
    """Compute the cross entropy of an earlier head's logits with their smoothed version.

    Where the largest logit of the newest head leads by more than the margin, nothing is smoothed
    and the gradient is zero. Shapes: (B, c_k), (B, c_t) -> (B,).
    """
    leads = newest.amax(dim=1) > old.amax(dim=1) + margin  # (B,)
    target = (old.detach() / torch.where(leads, 1.0, temperature).unsqueeze(1)).softmax(dim=1)
    return F.cross_entropy(old, target, reduction="none")
