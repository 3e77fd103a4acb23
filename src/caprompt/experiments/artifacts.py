"""What a finished run saves besides its accuracies: the final test image by image, and the cost of the model.

`predictions.npz` holds no image and no file name, only arrays for the N test images in the order of the dataset:
    classes  (C,)       names; the indices below refer to it
    true     (N,)       the class of each image
    answer   (N,)       the predicted class
    score    (N,)       the probability of that class
    cycles   (K,)       further numbers of cycles that were tested; a single 0 where the method has no cycles
    answers  (K, N)     the class predicted with each of them
    weights  (K, N, T)  the task weights behind it
`cost.json` holds what the training seconds in `results.json` leave out: memory, parameters, bytes stored per class, test speed.
"""

from __future__ import annotations

import io
import sys
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from caprompt.classifier import ContinualClassifier, LabeledOutput
from caprompt.errors import ModelFolderError, first_line
from caprompt.outputs import compute_probabilities
from caprompt.utils import files

__all__ = ["COST", "PREDICTIONS", "FinalPredictions", "reset_peak_memory", "save_artifacts"]

PREDICTIONS, COST = "predictions.npz", "cost.json"
MAX_BYTES = 2**31  # of predictions; those of a million images in a hundred tasks take a tenth per number of cycles
CYCLES = 3  # one more than the paper's: shows whether the weights go on changing


@dataclass(frozen=True)
class FinalPredictions:
    """The arrays of `predictions.npz`."""

    classes: tuple[str, ...]
    true: NDArray[np.int32]
    answer: NDArray[np.int32]
    score: NDArray[np.float32]
    cycles: tuple[int, ...]
    answers: NDArray[np.int32]
    weights: NDArray[np.float16]

    def save(self, path: Path) -> None:
        """Write the file, atomically and without pickle; an `OSError` names it."""
        content = io.BytesIO()
        arrays = {name: np.asarray(value) for name, value in vars(self).items()}
        np.savez_compressed(content, **arrays)  # type: ignore[arg-type]  # its other keyword is not an array
        try:
            files.write_bytes(path, content.getvalue())
        except OSError as error:
            raise OSError(error.errno, error.strerror, str(path)) from error

    @classmethod
    def load(cls, path: Path) -> FinalPredictions:
        """Read the file; raise `ModelFolderError` if it cannot be read, or is damaged."""
        try:
            _check_size(path)
            with np.load(path, allow_pickle=False) as arrays:
                classes, cycles = tuple(arrays["classes"].tolist()), tuple(arrays["cycles"].tolist())
                others = {name: arrays[name] for name in ("true", "answer", "score", "answers", "weights")}
            predictions = cls(classes=classes, cycles=cycles, **others)
            predictions.check()
        except OSError as error:
            raise ModelFolderError(f"'{path}' cannot be read ({error.strerror or error})") from error
        except Exception as error:  # of a damaged file, the parsers of zip and npy raise arbitrary exceptions
            raise ModelFolderError(f"'{path}' is damaged ({first_line(error)}); remove it, or run the experiment again") from error
        return predictions

    def check(self) -> None:
        """Raise ValueError if the arrays do not fit together."""
        if len(set(self.classes)) != len(self.classes) or not all(isinstance(name, str) for name in self.classes):
            raise ValueError("'classes' are not distinct names")
        if not all(type(number) is int and number >= 0 for number in self.cycles):
            raise ValueError("'cycles' are not numbers of cycles")
        num_images, num_cycles = len(self.true), len(self.cycles)
        if self.true.ndim != 1 or not num_images or not num_cycles:
            raise ValueError("there are no images")
        shapes = {"answer": (num_images,), "score": (num_images,), "answers": (num_cycles, num_images)}
        for name, shape in shapes.items():
            if getattr(self, name).shape != shape:
                raise ValueError(f"'{name}' is {getattr(self, name).shape}, not {shape}")
        if self.weights.shape[:2] != (num_cycles, num_images) or self.weights.ndim != 3:
            raise ValueError(f"'weights' is {self.weights.shape}, not ({num_cycles}, {num_images}, tasks)")
        for name in ("true", "answer", "answers"):
            indices = getattr(self, name)
            if indices.dtype.kind not in "iu" or (indices.size and not 0 <= indices.min() <= indices.max() < len(self.classes)):
                raise ValueError(f"'{name}' has values that are not classes")
        for name in ("score", "weights"):
            values = getattr(self, name)
            # A probability and a sum of some may be a rounding error above one.
            if values.dtype.kind != "f" or (values.size and not (values.min() >= 0 and values.max() <= 1.01)):
                raise ValueError(f"'{name}' has values that are not probabilities")


def _check_size(path: Path) -> None:
    """Raise ValueError for a file that would unpack to more than any run has."""
    with zipfile.ZipFile(path) as archive:
        size = sum(member.file_size for member in archive.infolist())
    if size > MAX_BYTES:
        raise ValueError(f"it unpacks to {size:,} bytes")


def save_artifacts(folder: Path, model: ContinualClassifier, test: LabeledOutput, give_task: bool) -> None:
    """Write both files, from the output of the final test and further outputs with other numbers of cycles."""
    _make_predictions(model, test, give_task).save(folder / PREDICTIONS)
    files.write_json(folder / COST, _measure_cost(model, len(test.targets), test.seconds))


def _make_predictions(model: ContinualClassifier, test: LabeledOutput, give_task: bool) -> FinalPredictions:
    logits, weights = test.output.logits.float().cpu(), test.output.task_weights.float().cpu()
    score, predicted = compute_probabilities(test.output).float().cpu().max(dim=1)
    by_cycles = {0: (logits, weights)} if give_task else _predict_by_cycles(model, test) or {0: (logits, weights)}
    return FinalPredictions(
        classes=tuple(model.classes),
        true=test.targets.numpy().astype(np.int32),
        answer=predicted.numpy().astype(np.int32),
        score=score.numpy().astype(np.float32),
        cycles=tuple(by_cycles),
        answers=np.stack([own_logits.argmax(dim=1).numpy() for own_logits, _ in by_cycles.values()]).astype(np.int32),
        weights=np.stack([own_weights.numpy() for _, own_weights in by_cycles.values()]).astype(np.float16),
    )


def _predict_by_cycles(model: ContinualClassifier, test: LabeledOutput) -> dict[int, tuple[Tensor, Tensor]]:
    """Return logits (N, C) and task weights (N, T) by number of cycles; nothing for a method without cycles."""
    if "cycles" not in model.method.options.at_prediction:
        return {}
    own = model.method.options.model_dump()["cycles"]
    outputs = {}
    for number in range(1, max(CYCLES, own if isinstance(own, int) else 0) + 1):
        output = test.output if number == own else model.compute_outputs(test.samples, cycles=number).output
        outputs[number] = output.logits.float().cpu(), output.task_weights.float().cpu()
    return outputs


def _measure_cost(model: ContinualClassifier, num_images: int, seconds: float) -> dict[str, Any]:
    """Return the cost of a model; the peak memory is that of the GPU, or of this process where there is none."""
    state = model.method.state().values()
    stored_bytes = sum(tensor.numel() * tensor.element_size() for tensor in state)
    return {
        "trained_parameters": sum(each.numel() for each in model.method.parameters() if each.requires_grad),
        "kept_bytes": stored_bytes,
        "kept_bytes_per_class": round(stored_bytes / len(model.classes)),
        "peak_memory_bytes": _peak_memory(model.device),
        "peak_memory_of": "GPU" if model.device.type == "cuda" else "process",
        "test_images": num_images,
        "test_seconds": round(seconds, 3),
    }


def reset_peak_memory(device: torch.device) -> None:
    """Measure a GPU's peak memory from here on; that of a process is measured from its start."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)


def _peak_memory(device: torch.device) -> int | None:
    """Return the most memory that was in use so far; None where the system does not say."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    try:
        import resource
    except ImportError:  # Windows
        return None
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
