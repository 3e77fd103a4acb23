"""A linear head on the frozen backbone's features, trained task after task: what the backbone alone is worth.

    logits = W f(x) + b,   f(x) (B, D) the plain feature, W (C, D) and b (C,) all that learns

Nothing protects the head. With the cross entropy among the classes of the current task (`masked`, the default) rows of old classes
get no gradient, so they stay as they were; over all classes seen so far they are pushed down by every image of a new class.
"""

from __future__ import annotations

from torch import Tensor

from caprompt.methods.registry import register
from caprompt.methods.templates import Baseline, BaselineOptions

__all__ = ["Linear"]


@register("linear")
class Linear(Baseline):
    """The head alone learns."""

    summary = "a linear head on the frozen backbone, nothing else learns (reference)"
    options_class = BaselineOptions

    def logits(self, images: Tensor) -> Tensor:
        """The head on the plain features: (B, C)."""
        logits: Tensor = self.head(self.vit(images))
        return logits
