"""Comparison of an exported model with the original, on images of a folder."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from caprompt.classifier import ContinualClassifier
from caprompt.data.class_names import normalize_class_name
from caprompt.data.images import decode
from caprompt.data.sources import collect_images
from caprompt.errors import DataError
from caprompt.export.preprocessing import IMAGES
from caprompt.utils.paths import expand_user

__all__ = ["Agreement", "check_folder", "compare_scores", "compute_exported_scores", "compute_scores", "verify_onnx"]

Scores: TypeAlias = NDArray[np.float32]
CHUNK = 64  # images that are predicted at a time


@dataclass(frozen=True)
class Agreement:
    """How far an exported model agrees with the original on images."""

    images: int
    same_label: int  # images with the same most likely class
    largest_difference: float  # between two scores of a class
    labeled: int  # images in a folder that is named like a class
    correct: int  # of these, by the original
    exported_correct: int  # of these, by the exported model

    @property
    def agreement(self) -> float:
        """Share of images with the same label, in percent."""
        return 100 * self.same_label / self.images

    @property
    def accuracies(self) -> tuple[float, float] | None:
        """Accuracy of the original and of the exported model, in percent; None without labeled images."""
        if not self.labeled:
            return None
        return 100 * self.correct / self.labeled, 100 * self.exported_correct / self.labeled

    def describe(self) -> list[str]:
        """Return a sentence on each figure.

        >>> for line in Agreement(1000, 999, 0.0123, 500, 400, 401).describe():
        ...     print(line)
        same label for 999 of 1,000 images (99.90 %)
        largest difference of a score 1.2e-02
        accuracy 80.00 % in torch, 80.20 % in ONNX Runtime, on 500 labeled images
        """
        lines = [
            f"same label for {self.same_label:,} of {self.images:,} images ({self.agreement:.2f} %)",
            f"largest difference of a score {self.largest_difference:.1e}",
        ]
        if self.accuracies is not None:
            original, exported = self.accuracies
            lines.append(
                f"accuracy {original:.2f} % in torch, {exported:.2f} % in ONNX Runtime, on {self.labeled:,} labeled images"
            )
        return lines


def verify_onnx(model: ContinualClassifier, exported: str | Path | bytes, folder: str | Path, **options: Any) -> Agreement:
    """Predict the images of a folder, at any depth, with a model and with an ONNX file made from it, or its content.

    The exported model gets every image in its full size, one at a time, as it would elsewhere. `options` are those that it was
    exported with. Images in a folder named like a class are counted in the accuracies.
    """
    root = check_folder(folder)
    paths, _ = collect_images([root])
    targets = np.array([_find_class(path.relative_to(root), model.classes) for path in paths])
    return compare_scores(compute_scores(model, paths, **options), compute_exported_scores(exported, paths), targets)


def check_folder(folder: str | Path) -> Path:
    """Return the path of a folder; raise if there is none, or no image in it."""
    root = expand_user(folder)
    if not root.is_dir():
        raise DataError(f"there is no folder '{root}'; give a folder of images")
    collect_images([root])
    return root


def compute_scores(model: ContinualClassifier, paths: Sequence[Path], **options: Any) -> Scores:
    """Return the scores of all classes for N image files: (N, C)."""
    index = {label: position for position, label in enumerate(model.labels)}
    scores = np.zeros((len(paths), len(index)), np.float32)
    for start in range(0, len(paths), CHUNK):
        predictions = model.predict(paths[start : start + CHUNK], top=len(index), **options)
        for row, prediction in zip(scores[start:], predictions, strict=False):
            for each in prediction.top:
                row[index[each.label]] = each.score
    return scores


def compute_exported_scores(exported: str | Path | bytes, paths: Sequence[Path]) -> Scores:
    """Return the scores of all classes for N image files by an ONNX file, or its content: (N, C)."""
    import onnxruntime

    source = exported if isinstance(exported, bytes) else str(expand_user(exported))
    session = onnxruntime.InferenceSession(source, providers=["CPUExecutionProvider"])
    return np.concatenate([session.run(["scores"], {IMAGES: decode(path)[None]})[0] for path in paths])


def compare_scores(originals: Scores, exported: Scores, targets: NDArray[np.int64]) -> Agreement:
    """Compare scores (N, C) of two models; targets (N,) are the classes of the images, or -1 where they are not known."""
    predicted, exported_predicted, is_labeled = originals.argmax(axis=1), exported.argmax(axis=1), targets >= 0
    return Agreement(
        images=len(targets),
        same_label=int((predicted == exported_predicted).sum()),
        largest_difference=float(np.abs(originals - exported).max()),
        labeled=int(is_labeled.sum()),
        correct=int((predicted == targets)[is_labeled].sum()),
        exported_correct=int((exported_predicted == targets)[is_labeled].sum()),
    )


def _find_class(path: Path, classes: list[str]) -> int:
    """Return the index of the class that the first folder of a relative path is named like, or -1.

    >>> _find_class(Path("dog/1.png"), ["cat", "dog"]), _find_class(Path("dog"), ["cat", "dog"])
    (1, -1)
    """
    name = normalize_class_name(path.parts[0])
    return classes.index(name) if len(path.parts) > 1 and name in classes else -1
