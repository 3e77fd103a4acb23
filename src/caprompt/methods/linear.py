"""Linear head on the features of the frozen backbone, trained task after task: a reference.

    logits = W f(x) + b,   f(x) (B, D) the backbone's features; only W (C, D) and b (C,) are trained

Nothing protects the head from forgetting. With the cross entropy among the classes of the current
task (`masked`, the default), rows of old classes get no gradient and do not change; with the cross
entropy over all classes seen so far, every image of a new class lowers their logits.
"""

from __future__ import annotations

from torch import Tensor

from caprompt.methods.registry import register
from caprompt.methods.templates import Baseline, BaselineOptions

__all__ = ["Linear"]


@register("linear")
class Linear(Baseline):
    """A linear head on frozen features."""

    summary = "a linear head on the frozen backbone, nothing else is trained (reference)"
    options_class = BaselineOptions
    can_train_in_threads = True

    def logits(self, images: Tensor) -> Tensor:
        """Apply the head to the features of the frozen backbone: (B, C)."""
        logits: Tensor = self.head(self.vit(images))
        return logits
