"""CPrompt: consistent prompting (Gao et al., CVPR 2024, arXiv:2403.08568).

Every task t has prompt tokens P_t, in front of the first layer's input and once more in front of a later one's. A class c has a key
k_c; an image's query q is its class token of a pass without prompts, and P_t is used if the nearest key is of a class of task t.
Training tells apart what prediction cannot: which head rows compete, and which prompt is used. Two terms make up for it.

    aux     CE(auxiliary_t(f_t), y)                              f_t: the image under P_t; the auxiliary head serves this alone
    smooth  mean over earlier tasks k of H(softmax(o_k / tau), softmax(o_k)),     o_k = head_k(f_t), the target without gradient,
            tau = 1 where max head_t(f_t) > max o_k + margin, else `temperature`:  earlier heads should be unsure of new images
    ce      CE(head_t(f_m), y), m drawn from all tasks so far:   the head should answer well under whichever prompt is chosen
    key     CE(cos(q, k_1 ... k_C), y)

Prompts and keys of earlier tasks are frozen; of their head rows, no new image moves any. As in the method's own program, the class
token is taken before the last norm. Images of known classes take part in `ce` (in the head rows of their task) and in `key`.

Shapes: B images, T tasks, C classes, L prompted layers, n rows, D width.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor

from caprompt.backbones.vit import Stem, ViT
from caprompt.methods.components.device_random import DeviceRandom
from caprompt.methods.components.growing_rows import GrowingRows, orthonormal_rows
from caprompt.methods.components.heads import LinearHead, cosines, linear_init
from caprompt.methods.components.tokens import Tokens
from caprompt.methods.options import Options
from caprompt.methods.registry import register
from caprompt.methods.templates import SelectedPromptMethod

__all__ = ["CPrompt", "CPromptOptions", "smoothing_loss"]


class CPromptOptions(Options):
    """The prompts' shape and the smoothing of earlier heads."""

    length: int = Field(50, ge=1, description="rows (tokens) of each of a task's two prompts")
    second_layer: int = Field(5, ge=1, description="the later layer that is prompted, from 0; the last one where there are fewer")
    temperature: float = Field(1.2, ge=1, description="how much smoother earlier heads' answers to new images should be")
    margin: float = Field(0.0, ge=0, description="by how much the newest head must be surer than an earlier one to leave it alone")
    smooth: float = Field(1.0, ge=0, description="weight of the smoothing; 0 switches it off")


@register("cprompt")
class CPrompt(SelectedPromptMethod):
    """Task prompts found by class keys, with heads that are trained for the wrong prompt too."""

    summary = "task prompts found by class keys, trained to be consistent with prediction (CVPR 2024)"
    options_class = CPromptOptions
    options: CPromptOptions
    head: LinearHead
    trains_on_known_classes = True

    def __init__(self, vit: ViT, options: CPromptOptions) -> None:
        super().__init__(vit, options)
        width = vit.config.width
        self.layers = sorted({0, min(options.second_layer, vit.config.depth - 1)})
        self.prompts = GrowingRows(len(self.layers), options.length, width)  # (T, L, n, D)
        self.keys = GrowingRows(width)  # (C, D)
        self.auxiliary = LinearHead(width)  # the newest task's
        self.chance = DeviceRandom()

    def begin_task(self, classes: int, generator: torch.Generator) -> None:
        """New prompts, starting from the previous ones, orthogonal keys for the new classes, a fresh auxiliary head."""
        super().begin_task(classes, generator)
        self.prompts.go_on(linear_init((1, *self.prompts.newest.shape[1:]), self.vit.config.width, generator))
        self.keys.append(orthonormal_rows(classes, self.keys(), generator))
        self.auxiliary = LinearHead(self.vit.config.width).to(self.head.weight)
        self.auxiliary.grow(classes, generator)
        self.chance.seed(generator)

    def cosines(self, stem: Stem) -> Tensor:
        """How near each image's query is to every class's key: (B, C)."""
        return cosines(self.vit.class_token(stem).to(self.keys.earlier), self.keys())

    def select_task(self, stem: Stem) -> Tensor:
        return self.task_of_class[self.cosines(stem).argmax(dim=1)]

    def features_under(self, stem: Stem, tasks: Tensor) -> Tensor:
        rows = self.prompts()[tasks].transpose(0, 1)  # (B, L, n, D) -> (L, B, n, D)
        return self.vit.class_token(stem, Tokens(rows, self.layers)).to(self.head.weight)

    def loss(self, images: Tensor, labels: Tensor) -> dict[str, Tensor]:
        """The four terms. Newest and drawn prompts go through the ViT as one batch."""
        stem, batch, tasks = self.vit.stem(images), len(labels), len(self.task_sizes)
        drawn = self.chance.below(tasks, batch)
        features = self.features_under(stem.repeated(2), torch.cat([torch.full_like(drawn, tasks - 1), drawn]))  # (2 B, D)
        under_newest, under_drawn = features.chunk(2)
        new = (labels >= self.num_known_classes).to(
            features
        )  # (B,); known classes have no part in what concerns the newest prompt alone
        local = (labels - self.num_known_classes).clamp_min(0)
        auxiliary = F.cross_entropy(self.auxiliary(under_newest), local, reduction="none")
        parts = {
            "aux": (new * auxiliary).mean(),
            "key": F.cross_entropy(self.cosines(stem), labels),
            "ce": self.own_task_cross_entropy(self.head(under_drawn), labels),
        }
        if self.num_known_classes and self.options.smooth:
            parts["smooth"] = self.options.smooth * (new * self.smoothing(under_newest)).mean()
        return parts

    def smoothing(self, features: Tensor) -> Tensor:
        """The smoothing loss of each image, averaged over earlier tasks; the heads are held fixed: (B, D) -> (B,)."""
        logits = F.linear(features, self.head.weight.detach(), self.head.bias.detach())
        *earlier, newest = logits.split(self.task_sizes, dim=1)
        losses = [smoothing_loss(old, newest, self.options.temperature, self.options.margin) for old in earlier]
        return torch.stack(losses).mean(dim=0)


def smoothing_loss(old: Tensor, newest: Tensor, temperature: float, margin: float) -> Tensor:
    """Cross entropy of an earlier head's logits with their own smoothed version: (B, c_k), (B, c_t) -> (B,).

    Where the newest head is surer than the old one by the margin, nothing is smoothed, and the gradient is zero.
    """
    surer = newest.amax(dim=1) > old.amax(dim=1) + margin  # (B,)
    target = (old.detach() / torch.where(surer, 1.0, temperature).unsqueeze(1)).softmax(dim=1)
    return F.cross_entropy(old, target, reduction="none")
