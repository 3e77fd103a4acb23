"""Prediction on a CPU: every image in a call of its own, several images at a time in threads.

How a matrix product rounds one of its rows depends on the number of rows and on the threads that share them, so an image in a batch
has other last digits than the same image alone. Here an image is always alone, and small networks compute it on one thread: its
output has the same bits in every batch. Large networks use all threads for one image after the other; there, one thread per image
would make a single prediction wait.
"""

from __future__ import annotations

import torch
from torch import Tensor

from caprompt.backbones.vit import ViTConfig
from caprompt.methods.base import Method, MethodOutput
from caprompt.utils.threads import compute_in_threads

__all__ = ["is_small", "predict_separately"]

MAX_SMALL_MACS = 6e9  # multiplications of a forward pass, from which on one image keeps all threads busy: above ViT-S/16
MAX_TINY_MACS, MAX_TINY_WORKERS = 5e8, 3  # more threads with an image of so small a network wait for Python's lock


def is_small(config: ViTConfig) -> bool:
    """Return whether a network is too small for several threads to share one image.

    >>> small = ViTConfig(image_size=224, patch_size=16, width=384, depth=12, heads=6, mlp_width=1536)
    >>> base = ViTConfig(image_size=224, patch_size=16, width=768, depth=12, heads=12, mlp_width=3072)
    >>> is_small(small), is_small(base)
    (True, False)
    """
    return count_macs(config) < MAX_SMALL_MACS


def count_macs(config: ViTConfig) -> int:
    """Return about how many multiplications a forward pass of one image takes."""
    tokens = config.grid**2 + 1
    return 12 * config.depth * tokens * config.width**2


def count_predicting_threads(method: Method) -> int:
    """Return how many threads predict images of a small network at a time, each of them one image."""
    if not method.can_predict_in_threads:
        return 1
    threads = torch.get_num_threads()
    return min(threads, MAX_TINY_WORKERS) if count_macs(method.vit.config) < MAX_TINY_MACS else threads


def predict_separately(method: Method, images: Tensor, true_tasks: Tensor | None) -> MethodOutput:
    """Predict images (B, 3, S, S), with their true tasks (B,) if these are passed, one by one; return the output of all, B rows."""

    def predict_one(index: int) -> MethodOutput:
        row = slice(index, index + 1)
        with torch.no_grad():
            return method.predict(images[row], None if true_tasks is None else true_tasks[row])

    if is_small(method.vit.config):
        outputs = compute_in_threads(predict_one, range(len(images)), count_predicting_threads(method))
    else:
        outputs = [predict_one(index) for index in range(len(images))]
    logits, task_weights, passes = ([getattr(each, name) for each in outputs] for name in ("logits", "task_weights", "passes"))
    return MethodOutput(torch.cat(logits), torch.cat(task_weights), torch.cat(passes))
