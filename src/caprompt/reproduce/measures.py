"""What is measured on a trained model and its test images, beyond the accuracies of its run.

Each function of a model and images is a `Measure` of `grid.py`: what it returns is kept as JSON in the cell's folder, under the
function's name.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from caprompt.classifier import ContinualClassifier
from caprompt.data import Samples
from caprompt.engine.inputs import InputPipeline
from caprompt.errors import InputError
from caprompt.methods.caprompt import CAPrompt, concave_gap
from caprompt.protocols import is_released, protocol

__all__ = ["by_cycles", "concavity", "costs", "first_layer_keys", "given_task", "trained_numbers"]

CYCLES = range(1, 7)
BINS = 40  # of the histogram of margins, from -1 to 1
#: Buffers that were trained once: earlier tasks' rows, HiDe-Prompt's network that names the task, the sum of InfLoRA's updates.
FROZEN_SINCE = {"earlier", "identity", "merged"}
ROUNDING = 1e-5  # of a probability: where one task has all the weight both sides are the same, and rounding decides


def given_task(model: ContinualClassifier, images: Samples) -> Mapping[str, Any]:
    """Accuracy where every image is seen under the prompt of its true task."""
    found = model.evaluate(images, give_task=True)
    return {"protocol": found.protocol, "ACC": found.average_accuracy, "pooled": found.accuracy}


def by_cycles(model: ContinualClassifier, images: Samples) -> Mapping[str, Any]:
    """ACC with one pass, two, and more; and with as many as each image needs, with the mean number of these."""
    found = {str(cycles): model.evaluate(images, cycles=cycles) for cycles in CYCLES}
    auto = model.evaluate(images, cycles="auto")
    return {
        "protocol": protocol(model.method.options),
        "ACC": {cycles: each.average_accuracy for cycles, each in found.items()},
        "task_identification": {cycles: each.task_identification for cycles, each in found.items()},
        "auto": {"ACC": auto.average_accuracy, "passes": auto.mean_passes},
    }


def first_layer_keys(model: ContinualClassifier, images: Samples) -> Mapping[str, Any]:
    """The rows that every task's prompt puts in front of the keys of the first prompted layer: (T, n, D)."""
    return {"rows": [prompt[0, 0].tolist() for prompt in prompted(model).prompts]}


def trained_numbers(model: ContinualClassifier) -> int:
    """How many numbers training has set that the model still needs: prompts of all tasks, head, keys, generators.

    Class statistics are not trained and do not count; copies that a method only keeps to compare with are left out as well.
    """
    learned = {name: tensor.numel() for name, tensor in model.method.named_parameters() if not name.startswith("vit.")}
    kept = {name: tensor.numel() for name, tensor in model.method.named_buffers() if set(name.split(".")) & FROZEN_SINCE}
    return sum(learned.values()) + sum(kept.values())


def costs(model: ContinualClassifier, images: Samples) -> Mapping[str, Any]:
    """What a model has to keep, and how many passes of the backbone an image takes.

    `bytes_per_class` is all that is kept beside the trained numbers (statistics, sums over features), by the number of classes.
    """
    numbers = trained_numbers(model)
    kept = sum(tensor.numel() * tensor.element_size() for tensor in model.method.state().values())
    some = images.select(range(0, len(images), max(1, len(images) // 500)))
    return {
        "numbers": numbers,
        "bytes_per_class": max(0, kept - 4 * numbers) / len(model.classes),
        "mean_passes": model.evaluate(some).mean_passes,
    }


def prompted(model: ContinualClassifier) -> CAPrompt:
    """CAPrompt itself; other methods have no mixture to look at."""
    if not isinstance(model.method, CAPrompt):
        raise InputError(f"this can be measured for caprompt only, not for {model.method.name}")
    return model.method


# -- Theorem 1 -----------------------------------------------------------------------------------------------------------------


def concavity(model: ContinualClassifier, images: Samples) -> Mapping[str, Any]:
    """How often, and by how much, the condition of the paper's Theorem 1 holds on test images; E1 against E2.

    For an image x of class y, T learned tasks, g(x, y, phi) the softmax probability of y under a prompt (over all classes seen),
    and p = (p_1 ... p_T) the weights that the model's own test uses for its second pass (those of Eq. 9 after the first pass):

    - E1 = mean of -log g(x, y, sum_i p_i phi_i): the error of the mixed prompt.
    - E2 = mean of -log sum_i p_i g(x, y, phi_i): the error of single prompts, each taken as often as it is thought right.
    - margin = g(x, y, sum_i p_i phi_i) - sum_i p_i g(x, y, phi_i). The theorem assumes margin >= 0 (Jensen's inequality along the
      mixture); then E1 <= E2. `margin_holds` is the percentage of images for which it is so, rounding apart, and `margin_gains`
      that of images for which the mixture is better by more than rounding.
    - delta = p_T g(x, y, phi_T) + (1 - p_T) g(x, y, sum_{i<T} p_i / (1 - p_T) phi_i) - g(x, y, sum_i p_i phi_i), Eq. 6 for the
      newest task: what training presses below zero on the newest task's training images. `delta_holds` is the percentage of test
      images with delta <= 0, rounding apart, `delta_holds_newest` that among the newest task's own.
    - chosen = mean of -log g(x, y, phi_j) for j the likeliest task: what a method does that picks one prompt.
    - own = the same for the true task's prompt, which nobody can know at the test.

    Errors are in nats. Everything is computed in float32, on logarithms where there are any.
    """
    method = prompted(model)
    if is_released(method.options):
        raise InputError("the theorem is about an image's own prompts; a model with the protocol 'released' does not use them")
    feeder = InputPipeline(model.backbone, model.device)
    samples, targets = model.labelled(images, feeder, skip_bad=False)
    with model.with_options({"precision": "fp32"}), torch.no_grad():
        shown = feeder.plain(samples, targets, method.options)
        parts = [_theorem_terms(method, pictures, labels) for pictures, labels in shown]
    terms = {name: torch.cat([part[name] for part in parts]).double().cpu() for name in parts[0]}
    return {"protocol": protocol(method.options), "images": len(samples), **dict(_theorem_figures(terms))}


def _theorem_terms(method: CAPrompt, pictures: Tensor, labels: Tensor) -> dict[str, Tensor]:
    """The terms of each image, (B,) each."""
    stem = method.vit.stem(pictures)
    weights = method.next_weights(method.first_logits(stem))  # p, (B, T)
    tasks = weights.shape[1]

    def log_g(mixture: Tensor) -> Tensor:
        return method.logits_under(stem, mixture).log_softmax(dim=1).gather(1, labels[:, None]).squeeze(1)

    single = torch.eye(tasks, device=weights.device, dtype=weights.dtype)
    each = torch.stack([log_g(single[task].expand_as(weights)) for task in range(tasks)], dim=1)  # (B, T)
    mixed = log_g(weights)
    tiny = torch.finfo(weights.dtype).tiny
    earlier = torch.cat([weights[:, :-1], torch.zeros_like(weights[:, -1:])], dim=1)
    earlier = earlier / earlier.sum(dim=1, keepdim=True).clamp_min(tiny)
    g_old = log_g(earlier).exp() if tasks > 1 else torch.zeros_like(mixed)
    true_task = method.task_of_class[labels]
    expected = (weights.clamp_min(tiny).log() + each).logsumexp(dim=1)
    return {
        "mixed": mixed,
        "expected": expected,
        "chosen": each.gather(1, weights.argmax(dim=1, keepdim=True)).squeeze(1),
        "own": each.gather(1, true_task[:, None]).squeeze(1),
        "delta": concave_gap(weights[:, -1], each[:, -1].exp(), g_old, mixed.exp()),
        "newest": (true_task == tasks - 1).to(mixed),
    }


def _theorem_figures(terms: Mapping[str, Tensor]) -> Iterator[tuple[str, Any]]:
    margin, delta, newest = terms["mixed"].exp() - terms["expected"].exp(), terms["delta"], terms["newest"] > 0
    yield "E1", float(-terms["mixed"].mean())
    yield "E2", float(-terms["expected"].mean())
    yield "chosen", float(-terms["chosen"].mean())
    yield "own", float(-terms["own"].mean())
    yield "margin", float(margin.mean())
    yield "margin_holds", _percent(margin >= -ROUNDING)
    yield "margin_gains", _percent(margin > ROUNDING)
    yield "margin_histogram", torch.histc(margin.float(), BINS, -1, 1).int().tolist()
    yield "delta", float(delta.mean())
    yield "delta_holds", _percent(delta <= ROUNDING)
    yield "delta_newest", float(delta[newest].mean())
    yield "delta_holds_newest", _percent(delta[newest] <= ROUNDING)


def _percent(held: Tensor) -> float:
    return 100 * float(held.double().mean())
