"""Comparison of an exported model with the original, on images of a folder."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from caprompt.classifier import ContinualClassifier
from caprompt.data.class_names import normalize_class_name
from caprompt.data.images import decode
from caprompt.data.sources import collect_images
from caprompt.errors import DataError
from caprompt.utils.paths import expand_user

if TYPE_CHECKING:
    import onnxruntime

__all__ = ["Agreement", "verify_onnx"]

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
        largest difference of a score 0.01230
        accuracy 80.00 % in torch, 80.20 % in ONNX Runtime, on 500 labeled images
        """
        lines = [
            f"same label for {self.same_label:,} of {self.images:,} images ({self.agreement:.2f} %)",
            f"largest difference of a score {self.largest_difference:.5f}",
        ]
        if self.accuracies is not None:
            original, exported = self.accuracies
            lines.append(
                f"accuracy {original:.2f} % in torch, {exported:.2f} % in ONNX Runtime, on {self.labeled:,} labeled images"
            )
        return lines


def verify_onnx(model: ContinualClassifier, exported: str | Path | bytes, folder: str | Path, **options: Any) -> Agreement:
    """Predict the images of a folder, at any depth, with a model and with an ONNX file made from it.

    The exported model gets every image in its full size, one at a time, as it would elsewhere. `options` are those that it was
    exported with. Images in a folder named like a class are counted in the accuracies.
    """
    import onnxruntime

    root = expand_user(folder)
    if not root.is_dir():
        raise DataError(f"there is no folder '{root}'; give a folder of images")
    paths, _ = collect_images([root])
    source = exported if isinstance(exported, bytes) else str(expand_user(exported))
    session = onnxruntime.InferenceSession(source, providers=["CPUExecutionProvider"])
    index = {name: position for position, name in enumerate(model.classes)}
    targets = np.array([_find_class(path.relative_to(root), index) for path in paths])
    originals = np.concatenate(list(_predict_scores(model, paths, index, options)))  # (N, C)
    scores = np.concatenate([_run_session(session, path) for path in paths])
    predicted, exported_predicted, is_labeled = originals.argmax(axis=1), scores.argmax(axis=1), targets >= 0
    return Agreement(
        images=len(paths),
        same_label=int((predicted == exported_predicted).sum()),
        largest_difference=float(np.abs(originals - scores).max()),
        labeled=int(is_labeled.sum()),
        correct=int((predicted == targets)[is_labeled].sum()),
        exported_correct=int((exported_predicted == targets)[is_labeled].sum()),
    )


def _find_class(path: Path, index: dict[str, int]) -> int:
    """Return the index of the class that the first folder of a relative path is named like, or -1."""
    return index.get(normalize_class_name(path.parts[0]), -1) if len(path.parts) > 1 else -1


def _predict_scores(
    model: ContinualClassifier, paths: Sequence[Path], index: dict[str, int], options: dict[str, Any]
) -> Iterator[NDArray[np.float32]]:
    """Yield the scores of the classes for some images at a time: (n, C)."""
    for start in range(0, len(paths), CHUNK):
        predictions = model.predict(paths[start : start + CHUNK], top=len(index), **options)
        scores = np.zeros((len(predictions), len(index)), np.float32)
        for row, prediction in zip(scores, predictions, strict=True):
            for each in prediction.top:
                row[index[each.label]] = each.score
        yield scores


def _run_session(session: onnxruntime.InferenceSession, path: Path) -> NDArray[np.float32]:
    scores: NDArray[np.float32] = session.run(["scores"], {"images": decode(path)[None]})[0]
    return scores
