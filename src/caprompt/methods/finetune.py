"""Full fine-tuning, task after task: the whole network learns, and nothing protects what it knew.

    logits = W g(x) + b,   g a copy of the backbone whose every weight is trained, W (C, D) and b (C,)

A lower bound when tasks come one after another, and the upper bound when all classes are learned at once (`caprompt run --joint`).
The backbone that a model is built on stays as it is; the copy belongs to what is learned and is saved with the model. It is held
in float32 and computes in the numbers that the frozen backbone is held in (autocast), so that small steps are not rounded away.
"""

from __future__ import annotations

from contextlib import nullcontext

import torch
from pydantic import Field
from torch import Tensor

from caprompt.backbones.fp8 import convert_from_fp8
from caprompt.backbones.vit import ViT
from caprompt.methods.registry import register
from caprompt.methods.templates import Baseline, BaselineOptions

__all__ = ["FineTune", "FineTuneOptions"]


class FineTuneOptions(BaselineOptions):
    """Rates for a network that has learned much already, and for a head that has learned nothing."""

    # Trained weights are soon spoilt: a rate that suits prompts destroys them. The head keeps the usual one, 60 x 5e-5 = 3e-3.
    learning_rate: float = Field(5e-5, gt=0, description="the rate for the network, and for the head times head_rate")
    head_rate: float = Field(60.0, ge=0, description="the head's learning rate relative to learning_rate")


@register("finetune")
class FineTune(Baseline):
    """A trainable copy of the backbone, and the head."""

    summary = "the whole network fine-tuned task after task (lower bound; with --joint the upper bound)"
    options_class = FineTuneOptions
    options: FineTuneOptions

    def __init__(self, vit: ViT, options: FineTuneOptions) -> None:
        super().__init__(vit, options)
        self.tuned = convert_from_fp8(vit.copy_uncompiled()).float().requires_grad_(True)

    def features(self, images: Tensor) -> Tensor:
        """Features of the trained copy: (B, D)."""
        precision = self.vit.cls_token.dtype
        half = torch.autocast(images.device.type, dtype=precision) if precision != torch.float32 else nullcontext()
        with half:
            features: Tensor = self.tuned(images)
        return features

    def logits(self, images: Tensor) -> Tensor:
        """The head on the copy's features: (B, C)."""
        logits: Tensor = self.head(self.features(images))
        return logits
