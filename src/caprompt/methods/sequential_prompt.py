"""Plain sequential fine-tuning of one set of prompts and the head: the lower bound that everything else is measured against.

The same prefix prompts as CAPrompt's, but one set for all tasks, trained on and on with the cross entropy; nothing is replayed.
What this lower bound is worth depends on the cross entropy: over all classes seen so far (the default) the head forgets at once,
masked to the current task's classes (`masked`) it forgets slowly. State which.
"""

from __future__ import annotations

import torch
from pydantic import Field
from torch import Tensor, nn

from caprompt.backbones.vit import ViT
from caprompt.methods.components.prefix import Prefix, PrefixOptions, prompted_layers, random_prompt
from caprompt.methods.registry import register
from caprompt.methods.templates import Baseline, BaselineOptions

__all__ = ["SequentialOptions", "SequentialPrompt"]


class SequentialOptions(PrefixOptions, BaselineOptions):
    """The same prompt shape as CAPrompt's."""

    masked: bool = Field(False, description="cross entropy among the classes of the image's own task only")


@register("sequential-prompt")
class SequentialPrompt(Baseline):
    """One prompt, fine-tuned on every task in turn."""

    summary = "one prompt and the head, plainly fine-tuned task after task (lower bound)"
    options_class = SequentialOptions
    options: SequentialOptions

    def __init__(self, vit: ViT, options: SequentialOptions) -> None:
        super().__init__(vit, options)
        self.layers = prompted_layers(vit.config, options)
        self.prompt = nn.Parameter(random_prompt(vit.config, options, torch.Generator()))  # (L, 2, n, D)

    def begin_task(self, classes: int, generator: torch.Generator) -> None:
        """Further head rows; the prompt gets its random start with the first task."""
        super().begin_task(classes, generator)
        if len(self.task_sizes) == 1:
            self.prompt.data.copy_(random_prompt(self.vit.config, self.options, generator))

    def logits(self, images: Tensor) -> Tensor:
        """The head on features under the one prompt: (B, C)."""
        logits: Tensor = self.head(self.vit(images, Prefix.shared(self.prompt, self.layers, images.shape[0])))
        return logits
