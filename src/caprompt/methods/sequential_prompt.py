"""Sequential fine-tuning of one prompt and the head: the lower bound for prompt methods.

The prefix prompts are those of CAPrompt, but one prompt is shared by all tasks and trained further
with the cross entropy on each; nothing is replayed.
The value of this bound depends on the cross entropy: over all classes seen so far (the default) the
head forgets at once, masked to the classes of the current task (`masked`) it forgets slowly.
Reports should state which of the two was used.

Shapes: B images, C classes, L prompted layers, n rows of keys (and as many of values), D width.
"""

from __future__ import annotations

from typing import ClassVar

import torch
from pydantic import Field
from torch import Tensor, nn

from caprompt.backbones.vit import ViT
from caprompt.methods.components.prefix import Prefix, PrefixOptions, draw_prompt, resolve_layers
from caprompt.methods.registry import register
from caprompt.methods.templates import Baseline, BaselineOptions

__all__ = ["SequentialPrompt", "SequentialPromptOptions"]


class SequentialPromptOptions(PrefixOptions, BaselineOptions):
    """Options of the prompt, as in CAPrompt, and of the cross entropy."""

    masked: bool = Field(False, description="cross entropy among the classes of the image's own task only")


@register("sequential-prompt")
class SequentialPrompt(Baseline):
    """One prompt, fine-tuned on every task in turn."""

    summary = "one prompt and the head, fine-tuned task after task (lower bound)"
    options_class = SequentialPromptOptions
    can_train_in_threads = True
    check_options: ClassVar = {**Baseline.check_options, "length": 4}
    options: SequentialPromptOptions

    def __init__(self, vit: ViT, options: SequentialPromptOptions) -> None:
        super().__init__(vit, options)
        self.layers = resolve_layers(vit.config, options)
        self.prompt = nn.Parameter(draw_prompt(vit.config, options, torch.Generator()))  # (L, 2, n, D)

    def begin_task(self, num_classes: int, generator: torch.Generator) -> None:
        """Add head rows; the prompt is initialized with the first task."""
        super().begin_task(num_classes, generator)
        if len(self.task_sizes) == 1:
            self.prompt.data.copy_(draw_prompt(self.vit.config, self.options, generator))

    def logits(self, images: Tensor) -> Tensor:
        """Apply the head to the features under the shared prompt: (B, C)."""
        logits: Tensor = self.head(self.vit(images, Prefix.shared(self.prompt, self.layers, images.shape[0])))
        return logits
