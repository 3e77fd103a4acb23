"""`Explanation`: what in an image spoke for the predicted class, and what else the model weighed.

    explanation = model.explain("cat.jpg")                    # against the runner-up
    explanation = model.explain("cat.jpg", against="lynx")
    explanation.heat                                          # (R, R), a value per patch

`occlusion` computes the heat map, `class_means` the nearest learned classes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from caprompt.classifier.class_means import compute_similarities, explain_missing_means
from caprompt.classifier.occlusion import compute_heat_map
from caprompt.classifier.unlearned import make_unlearned_error
from caprompt.data.class_names import normalize_class_name
from caprompt.data.image_inputs import convert_image
from caprompt.data.images import SKIP_HINT, Pixels, decode
from caprompt.data.labels import Label
from caprompt.data.transforms import EvalTransform
from caprompt.engine.inference import choose_batch_size
from caprompt.engine.inputs import DECODE_FACTOR, InputPipeline
from caprompt.errors import DataError, InputError, OptionError
from caprompt.outputs import Score
from caprompt.protocols import is_released

if TYPE_CHECKING:
    from caprompt.classifier.prediction import PredictingModel

__all__ = ["COPIES", "Explanation", "Similarity", "crop_to_view", "explain"]

COPIES = 256  # of the image, each without some of its patches
MIN_COPIES = 32
NUM_CLASSES = 5  # shown of the scores and of the nearest class means


@dataclass(frozen=True)
class Similarity:
    """A class and the cosine of its mean with the features of an image."""

    label: Label
    cosine: float


@dataclass(frozen=True, eq=False)
class Explanation:
    """What spoke for the predicted class of one image, against another class."""

    predicted: Score
    against: Score  # the runner-up, or the class that was asked for
    margin: float  # logit of the first minus logit of the second
    heat: NDArray[np.float64]  # (R, R): how much removing a patch lowers the margin; negative where it speaks for the other class
    fit: float  # how well the heat map predicts the margin of copies without some patches: 1 is perfect, 0 is not at all
    copies: int  # of the image, behind the heat map
    image: Pixels  # what the network sees of the image, in the resolution of the file
    top: tuple[Score, ...]  # the most likely classes
    nearest: tuple[Similarity, ...]  # the classes with the most similar means
    no_means: str | None  # why `nearest` is empty
    task_weights: tuple[tuple[float, ...], ...]  # after each pass, or without cycles those of the prediction
    has_cycles: bool
    tasks: tuple[tuple[str, ...], ...]  # classes of each task

    def as_dict(self) -> dict[str, Any]:
        """Return a dictionary for JSON, without the image."""
        return {
            "label": self.predicted.label,
            "score": self.predicted.score,
            "against": vars(self.against),
            "margin": self.margin,
            "heat": self.heat.round(6).tolist(),
            "fit": self.fit,
            "copies": self.copies,
            "top": [vars(score) for score in self.top],
            "nearest": [vars(each) for each in self.nearest],
            "no_means": self.no_means,
            "task_weights": self.task_weights,
            "tasks": self.tasks,
        }


def explain(
    model: PredictingModel,
    image: Any,
    *,
    against: Label | None = None,
    copies: int = COPIES,
    batch_size: int | None = None,
    options: Mapping[str, Any],
) -> Explanation:
    """Explain the prediction for one image; the model is not changed."""
    other = _check_request(model, against, copies)
    pixels = _decode_one(model, image)
    with model.override_options(options):
        prediction = model.predict_one(pixels, top=len(model.classes))
        ranks = {str(score.label): score for score in prediction.top}
        predicted, runner_up = prediction.top[:2]
        if other == str(predicted.label):
            raise InputError(f"the image is predicted as '{other}' itself; name another class to compare it with")
        compared = runner_up if other is None else ranks[other]
        pair = [model.labels.index(score.label) for score in (predicted, compared)]
        view, network_input = _prepare(model, pixels)

        @torch.no_grad()
        def compute_margins(images: Tensor) -> Tensor:
            logits = model.table.merge_logits(model.method.predict(images).logits)
            return logits[:, pair[0]] - logits[:, pair[1]]

        heat_map = compute_heat_map(
            compute_margins,
            network_input[0],
            model.backbone.config.grid,
            copies,
            choose_batch_size(copies, batch_size, model.device),
        )
        no_means = explain_missing_means(model.method)
        return Explanation(
            predicted=predicted,
            against=compared,
            margin=float(compute_margins(network_input)[0]),
            heat=heat_map.heat.numpy(),
            fit=heat_map.fit,
            copies=copies,
            image=view,
            top=prediction.top[:NUM_CLASSES],
            nearest=_rank_means(model, network_input) if no_means is None else (),
            no_means=no_means,
            task_weights=_trace_task_weights(model, network_input, prediction.task_weights, prediction.passes),
            has_cycles=_has_cycles(model),
            tasks=tuple(map(tuple, model.tasks)),
        )


def _check_request(model: PredictingModel, against: Label | None, copies: int) -> str | None:
    """Return the name of the class to compare with; raise if there is no answer to expect."""
    if len(model.classes) < 2:
        count = "only one" if model.classes else "none"
        raise InputError(f"an explanation compares two classes, but this model has learned {count}; teach it another one first")
    if is_released(model.method.options):
        raise InputError(
            "with protocol=released a prediction depends on the other images of its batch, so it cannot be explained; "
            "train the model with protocol=honest"
        )
    if copies < MIN_COPIES:
        raise OptionError(f"copies must be at least {MIN_COPIES}, not {copies}")
    if against is None:
        return None
    name = normalize_class_name(str(against))
    if name not in model.classes:
        raise make_unlearned_error(name, model.classes)
    return name


def _decode_one(model: PredictingModel, image: Any) -> Pixels:
    try:
        return decode(convert_image(image, "the image"), shrink_to=DECODE_FACTOR * model.backbone.config.image_size)
    except DataError as error:
        raise DataError(str(error).replace(SKIP_HINT, "; name another one")) from error


def _prepare(model: PredictingModel, pixels: Pixels) -> tuple[Pixels, Tensor]:
    """Return what the network sees of an image: in the resolution of the image, and as its input (1, 3, S, S)."""
    pipeline, options = InputPipeline(model.backbone, model.device, cache_bytes=0), model.method.input_options
    (network_input,) = pipeline.eval_images([pixels], options, 1)
    return crop_to_view(pixels, pipeline.make_eval_transform(options)), network_input


def crop_to_view(pixels: Pixels, transform: EvalTransform) -> Pixels:
    """Return the part of an image that a transform keeps, in the image's own resolution.

    >>> crop_to_view(np.zeros((40, 80, 3), np.uint8), EvalTransform(8, (0, 0, 0), (1, 1, 1), resize=10)).shape
    (32, 32, 3)
    """
    height, width = pixels.shape[:2]
    view = transform.make_view(width, height)
    scale = min(width, height) / min(view.resized)
    left, top, side = (round(scale * length) for length in (*view.corner, transform.size))
    return pixels[top : top + side, left : left + side]


def _rank_means(model: PredictingModel, network_input: Tensor) -> tuple[Similarity, ...]:
    """Return the classes with the most similar means; a class that was joined from several has the mean nearest to the image."""
    best = dict.fromkeys(range(len(model.classes)), -np.inf)
    for output, cosine in enumerate(compute_similarities(model.method, network_input).tolist()):
        name = model.table.name_of_output[output]
        best[name] = max(best[name], cosine)
    ranked = sorted((name for name in best if np.isfinite(best[name])), key=lambda name: -best[name])
    return tuple(Similarity(model.labels[name], best[name]) for name in ranked[:NUM_CLASSES])


def _has_cycles(model: PredictingModel) -> bool:
    return "cycles" in model.method.options.at_prediction


@torch.no_grad()
def _trace_task_weights(
    model: PredictingModel, network_input: Tensor, final: tuple[float, ...], passes: int
) -> tuple[tuple[float, ...], ...]:
    """Return the task weights that follow from the class scores after each pass, or the final ones of a method without cycles."""
    if not _has_cycles(model):
        return (final,)
    rows = []
    for cycles in range(1, passes + 1):
        with model.override_options({"cycles": cycles}):
            logits = model.method.predict(network_input).logits
            rows.append(tuple(model.method.sum_by_task(logits.softmax(dim=1))[0].tolist()))
    return tuple(rows)
