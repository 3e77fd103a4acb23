"""Measurements on a trained model and its test images, beyond the accuracies of its run.

Each function of a model and images is a `Measure` of `experiments/grid.py`.
Its result is saved as JSON in the cell's folder, under the function's name.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor

from caprompt.classifier import ContinualClassifier
from caprompt.data import Samples
from caprompt.engine.inference import map_samples
from caprompt.engine.inputs import InputPipeline
from caprompt.errors import InputError
from caprompt.methods.caprompt import CAPrompt, concave_gap
from caprompt.protocols import describe_protocol, is_released

__all__ = ["by_cycles", "concavity", "costs", "count_trained_parameters", "first_layer_keys", "given_task"]

CYCLES = range(1, 7)
BATCH_SIZE = 64
BINS = 40  # of the histogram of margins, from -1 to 1
#: Buffers that were trained in earlier tasks: prompt rows, HiDe-Prompt's task-identity network, the sum of InfLoRA's updates.
FROZEN_SINCE = {"earlier", "identity", "merged"}
ROUNDING = 1e-5  # tolerance of probabilities: where one task has all the weight both sides are equal up to rounding


def given_task(model: ContinualClassifier, images: Samples) -> Mapping[str, Any]:
    """Return the accuracy with the prompt of each image's true task."""
    evaluation = model.evaluate(images, give_task=True)
    return {"protocol": evaluation.protocol, "ACC": evaluation.average_accuracy, "pooled": evaluation.accuracy}


def by_cycles(model: ContinualClassifier, images: Samples) -> Mapping[str, Any]:
    """Return ACC for each number of cycles, and for `cycles="auto"` with the mean number of passes."""
    evaluations = {str(cycles): model.evaluate(images, cycles=cycles) for cycles in CYCLES}
    auto = model.evaluate(images, cycles="auto")
    return {
        "protocol": describe_protocol(model.method.options),
        "ACC": {cycles: each.average_accuracy for cycles, each in evaluations.items()},
        "task_identification": {cycles: each.task_identification for cycles, each in evaluations.items()},
        "auto": {"ACC": auto.average_accuracy, "passes": auto.mean_passes},
    }


def first_layer_keys(model: ContinualClassifier, images: Samples) -> Mapping[str, Any]:
    """Return the rows that each task's prompt prepends to the keys of the first prompted layer: (T, n, D)."""
    return {"rows": [prompt[0, 0].tolist() for prompt in _get_caprompt(model).prompts]}


def count_trained_parameters(model: ContinualClassifier) -> int:
    """Count the trained parameters that the model still needs: prompts of all tasks, head, keys, generators.

    Class statistics are not trained and do not count, nor do copies that a method only stores for comparison.
    """
    trained = {name: tensor.numel() for name, tensor in model.method.named_parameters() if not name.startswith("vit.")}
    frozen = {name: tensor.numel() for name, tensor in model.method.named_buffers() if set(name.split(".")) & FROZEN_SINCE}
    return sum(trained.values()) + sum(frozen.values())


def costs(model: ContinualClassifier, images: Samples) -> Mapping[str, Any]:
    """Return the model's storage and the mean number of backbone passes per image.

    `numbers` counts the trained parameters.
    `bytes_per_class` is everything else that is stored (statistics, sums over features), divided by the number of classes.
    """
    parameters = count_trained_parameters(model)
    stored = sum(tensor.numel() * tensor.element_size() for tensor in model.method.state().values())
    subset = images.select(range(0, len(images), max(1, len(images) // 500)))
    return {
        "numbers": parameters,
        "bytes_per_class": max(0, stored - 4 * parameters) / len(model.classes),
        "mean_passes": model.evaluate(subset).mean_passes,
    }


def _get_caprompt(model: ContinualClassifier) -> CAPrompt:
    """Return the model's method if it is CAPrompt; other methods have no mixture of prompts."""
    if not isinstance(model.method, CAPrompt):
        raise InputError(f"this can be measured for caprompt only, not for {model.method.name}")
    return model.method


# -- Theorem 1 -----------------------------------------------------------------------------------------------------------------


def concavity(model: ContinualClassifier, images: Samples) -> Mapping[str, Any]:
    """Measure how often and by how much the condition of the paper's Theorem 1 holds on test images, and E1 against E2.

    For an image x of class y, T learned tasks, g(x, y, phi) the softmax probability of y under a prompt (over all classes seen),
    and p = (p_1 ... p_T) the weights of the model's second pass at test (Eq. 9 after the first pass):

    - E1 = mean of -log g(x, y, sum_i p_i phi_i): the error of the mixed prompt.
    - E2 = mean of -log sum_i p_i g(x, y, phi_i): the error of single prompts, each drawn with its weight.
    - margin = g(x, y, sum_i p_i phi_i) - sum_i p_i g(x, y, phi_i). The theorem assumes margin >= 0 (Jensen's inequality along the
      mixture); then E1 <= E2. `margin_holds` is the percentage of images for which it holds up to rounding, and `margin_gains`
      that of images for which the mixture is better by more than rounding.
    - delta = p_T g(x, y, phi_T) + (1 - p_T) g(x, y, sum_{i<T} p_i / (1 - p_T) phi_i) - g(x, y, sum_i p_i phi_i), Eq. 6 for the
      newest task, which training penalizes above zero on the newest task's training images. `delta_holds` is the percentage of
      test images with delta <= 0 up to rounding, `delta_holds_newest` that among the newest task's images.
    - chosen = mean of -log g(x, y, phi_j) for j the most likely task: the error of a method that selects one prompt.
    - own = the same for the true task's prompt, which is unknown at test.

    Errors are in nats. Everything is computed in float32, on log-probabilities where possible.
    """
    method = _get_caprompt(model)
    if is_released(method.options):
        raise InputError("the theorem is about an image's own prompts; a model with the protocol 'released' does not use them")
    pipeline = InputPipeline(model.backbone, model.device)
    samples, targets = model.read_labeled(images, pipeline, skip_bad=False)
    with model.override_options({"precision": "fp32"}), torch.no_grad():
        compute_terms = partial(_compute_theorem_terms, method)
        parts, _ = map_samples(compute_terms, pipeline, samples, targets, method.input_options, BATCH_SIZE)
    terms = {name: torch.cat([part[name] for part in parts]).double().cpu() for name in parts[0]}
    return {"protocol": describe_protocol(method.options), "images": len(samples), **dict(_compute_theorem_metrics(terms))}


def _compute_theorem_terms(method: CAPrompt, images: Tensor, labels: Tensor) -> dict[str, Tensor]:
    """Return the terms of each image, (B,) each."""
    stem = method.vit.stem(images)
    weights = method.compute_task_weights(method.compute_first_logits(stem))  # p, (B, T)
    tasks = weights.shape[1]

    def log_g(mixture: Tensor) -> Tensor:
        return method.compute_logits(stem, mixture).log_softmax(dim=1).gather(1, labels[:, None]).squeeze(1)

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


def _compute_theorem_metrics(terms: Mapping[str, Tensor]) -> Iterator[tuple[str, Any]]:
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


def _percent(mask: Tensor) -> float:
    return 100 * float(mask.double().mean())
