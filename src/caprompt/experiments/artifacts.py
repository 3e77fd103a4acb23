"""What the final test said of every image, and what the model cost: kept beside a run's figures for whoever looks closer.

`predictions.npz` holds no picture and no file name, only numbers for the N test images in the order of the data set:
    classes  (C,)       names; the numbers below are positions in it
    true     (N,)       the class of each image
    answer   (N,)       the class it was taken for
    score    (N,)       the probability of that answer
    cycles   (K,)       with how many cycles the method was asked besides; a single 0 where it has no cycles
    answers  (K, N)     the answer that each of them gives
    weights  (K, N, T)  the task weights behind it
`cost.json` holds what training seconds (in `results.json`) do not tell: memory, parameters, what is kept of a class, test speed.
"""

from __future__ import annotations

import io
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from caprompt import protocols
from caprompt.classifier import ContinualClassifier
from caprompt.data import Samples
from caprompt.engine.inference import choose_batch_size
from caprompt.engine.inputs import InputPipeline
from caprompt.utils import files

__all__ = ["COST", "PREDICTIONS", "TestPredictions", "reset_peak_memory", "save_artifacts"]

PREDICTIONS, COST = "predictions.npz", "cost.json"
CYCLES = 3  # one more than the paper's: shows whether the weights go on moving


@dataclass(frozen=True)
class TestPredictions:
    """The arrays of `predictions.npz`."""

    classes: tuple[str, ...]
    true: NDArray[np.int32]
    answer: NDArray[np.int32]
    score: NDArray[np.float32]
    cycles: tuple[int, ...]
    answers: NDArray[np.int32]
    weights: NDArray[np.float16]

    def save(self, path: Path) -> None:
        """Write the file, atomically and without pickle."""
        content = io.BytesIO()
        arrays = {name: np.asarray(value) for name, value in vars(self).items()}
        np.savez_compressed(content, **arrays)  # type: ignore[arg-type]  # its other keyword is no array
        files.write_bytes(path, content.getvalue())

    @classmethod
    def load(cls, path: Path) -> TestPredictions:
        """Read the file; a ValueError, KeyError or OSError if it is not one."""
        with np.load(path, allow_pickle=False) as arrays:
            classes, cycles = tuple(arrays["classes"].tolist()), tuple(arrays["cycles"].tolist())
            others = {name: arrays[name] for name in ("true", "answer", "score", "answers", "weights")}
        return cls(classes=classes, cycles=cycles, **others)


def save_artifacts(folder: Path, model: ContinualClassifier, test: Samples, give_task: bool) -> None:
    """Test once more, image by image, and write both files."""
    found, seconds = answered(model, test, give_task)
    found.save(folder / PREDICTIONS)
    files.write_json(folder / COST, cost(model, len(test), seconds))


def answered(model: ContinualClassifier, test: Samples, give_task: bool) -> tuple[TestPredictions, float]:
    """What the model says of every image, with its own options and with other numbers of cycles; seconds of the former."""
    feeder = InputPipeline(model.backbone, model.device)
    samples, targets = model.labelled(test, feeder, skip_bad=False)
    began = time.perf_counter()
    logits, weights = asked(model, feeder, samples, targets, give_task)
    seconds = time.perf_counter() - began
    score, answer = logits.softmax(dim=1).max(dim=1)
    by_cycles = {0: (logits, weights)}
    if not give_task and "cycles" in model.method.options.at_prediction:
        own = model.method.options.model_dump()["cycles"]
        by_cycles = {}
        for number in range(1, max(CYCLES, own if isinstance(own, int) else 0) + 1):
            with model.with_options({"cycles": number}):
                by_cycles[number] = asked(model, feeder, samples, targets) if number != own else (logits, weights)
    found = TestPredictions(
        classes=tuple(model.classes),
        true=np.array(targets, dtype=np.int32),
        answer=answer.numpy().astype(np.int32),
        score=score.numpy().astype(np.float32),
        cycles=tuple(by_cycles),
        answers=np.stack([each.argmax(dim=1).numpy() for each, _ in by_cycles.values()]).astype(np.int32),
        weights=np.stack([each.numpy() for _, each in by_cycles.values()]).astype(np.float16),
    )
    return found, seconds


def asked(
    model: ContinualClassifier, feeder: InputPipeline, samples: Samples, targets: Sequence[int], give_task: bool = False
) -> tuple[Tensor, Tensor]:
    """Logits (N, C) and task weights (N, T) of the images, in their order."""
    method, own_task = model.method, model.method.task_of_class[targets].tolist()
    logits, weights = torch.empty(len(samples), method.num_classes), torch.empty(len(samples), len(method.task_sizes))
    for positions, size in protocols.group_for_batches(
        method.options, own_task, choose_batch_size(len(samples), None, model.device)
    ):
        ask = model.asked.answering(method, size)
        chosen, at = samples.select(positions), 0
        for images, labels in feeder.plain(chosen, [targets[i] for i in positions], method.options, size):
            images = images.to(model.device)
            answer = method.predict(images, method.task_of_class[labels]) if give_task else ask(images)
            here = positions[at : at + len(images)]
            logits[here], weights[here] = answer.logits.float().cpu(), answer.task_weights.float().cpu()
            at += len(images)
    return logits, weights


def cost(model: ContinualClassifier, images: int, seconds: float) -> dict[str, Any]:
    """What a user pays; the peak is that of this process, the GPU's where there is one."""
    state = model.method.state().values()
    kept = sum(tensor.numel() * tensor.element_size() for tensor in state)
    return {
        "trained_parameters": sum(each.numel() for each in model.method.parameters() if each.requires_grad),
        "kept_bytes": kept,
        "kept_bytes_per_class": round(kept / len(model.classes)),
        "peak_memory_bytes": peak_memory(model.device),
        "peak_memory_of": "GPU" if model.device.type == "cuda" else "process",
        "test_images": images,
        "test_seconds": round(seconds, 3),
    }


def reset_peak_memory(device: torch.device) -> None:
    """Count a GPU's peak memory from here on; that of a process is counted from its start."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)


def peak_memory(device: torch.device) -> int | None:
    """The most memory that was in use so far; None where the system does not tell."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    try:
        import resource
    except ImportError:  # Windows
        return None
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
