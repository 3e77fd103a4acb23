"""Similarity of an image to the learned mean of each class, for methods that store such means.

A method stores them as `Statistics` in its attribute `statistics`, or in that of its head. They are
means of the features that its classifier gets: those of the last forward pass of a prediction, or
with an adapter per task those under the adapter of the predicted task.

Shapes: C classes, D width.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from caprompt.methods.base import Method
from caprompt.methods.components.heads import cosines
from caprompt.methods.components.statistics import Statistics
from caprompt.methods.components.task_adapters import TaskAdapters

__all__ = ["compute_similarities", "explain_missing_means"]


def explain_missing_means(method: Method) -> str | None:
    """Return a sentence on why there is nothing to compare an image with; None if there is."""
    found = _find_statistics(method)
    if found is None:
        return f"the method {method.name} stores no single mean of each class in the feature space of its classifier"
    if f"{found[0]}.mean" in method.removed_state:
        return "this model was published without its class means"
    return None


@torch.no_grad()
def compute_similarities(method: Method, image: Tensor) -> Tensor:
    """Return the cosine of an image (1, 3, S, S) with the mean of each class: (C,), -inf where no image was learned."""
    found = _find_statistics(method)
    assert found is not None  # the caller has asked `explain_missing_means`
    statistics = found[1]
    similarities = cosines(_extract_features(method, image).to(statistics.mean), statistics.mean)[0]
    return similarities.masked_fill(statistics.count == 0, -torch.inf).cpu()


def _find_statistics(method: Method) -> tuple[str, Statistics] | None:
    """Return the name and the module of the stored class means."""
    owners: tuple[tuple[str, nn.Module], ...] = (("statistics", method), ("head.statistics", method.head))
    candidates = ((name, getattr(owner, "statistics", None)) for name, owner in owners)
    return next(((name, module) for name, module in candidates if isinstance(module, Statistics)), None)


def _extract_features(method: Method, image: Tensor) -> Tensor:
    """Return the features (1, D) of an image that correspond to the stored means."""
    passes: list[Tensor] = []
    handle = method.vit.register_forward_hook(lambda _module, _inputs, features: passes.append(features))
    try:
        output = method.predict(image)
    finally:
        handle.remove()
    adapters = getattr(method, "adapters", None)
    if isinstance(adapters, TaskAdapters):  # the last pass may be that of another adapter
        features: Tensor = method.vit(image, adapters.select(output.task_weights.argmax(dim=1)))
        return features
    return passes[-1][:, -method.vit.config.width :]  # a pass may return several blocks, the last one last
