"""Full fine-tuning, task after task, without protection from forgetting.

    logits = W g(x) + b,   g a copy of the backbone with all weights trained, W (C, D) and b (C,)

This is a lower bound when tasks come one after another, and the upper bound when all classes are
learned at once (joint training).
The frozen backbone of the model is not modified; the trained copy is part of the method's state and
is saved with the model. The copy is stored in float32 and computes in the dtype of the frozen
backbone (autocast), so that small updates are not lost to rounding.
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
    """Learning rates of the pretrained network and of the new head."""

    # A rate that suits prompts destroys pretrained weights.
    # The head keeps the usual rate, 60 x 5e-5 = 3e-3.
    learning_rate: float = Field(5e-5, gt=0, description="learning rate of the network; the head's is this times head_rate")
    head_rate: float = Field(60.0, ge=0, description="learning rate of the head relative to learning_rate")


@register("finetune")
class FineTune(Baseline):
    """A trainable copy of the backbone, and the head."""

    summary = "the whole network fine-tuned task after task (lower bound; with joint training the upper bound)"
    options_class = FineTuneOptions
    can_train_in_threads = True
    options: FineTuneOptions

    def __init__(self, vit: ViT, options: FineTuneOptions) -> None:
        super().__init__(vit, options)
        self.tuned = convert_from_fp8(vit.copy_uncompiled()).float().requires_grad_(True)

    def features(self, images: Tensor) -> Tensor:
        """Compute features of the trained copy: (B, D)."""
        dtype = self.vit.cls_token.dtype
        autocast = torch.autocast(images.device.type, dtype=dtype) if dtype != torch.float32 else nullcontext()
        with autocast:
            features: Tensor = self.tuned(images)
        return features

    def logits(self, images: Tensor) -> Tensor:
        """Apply the head to the features of the copy: (B, C)."""
        logits: Tensor = self.head(self.features(images))
        return logits
