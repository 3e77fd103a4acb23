"""Estimators with the interface of scikit-learn: features of images, and a classifier of features that learns class by class.

    from sklearn.pipeline import make_pipeline
    from caprompt.sklearn import FeatureExtractor, IncrementalRidgeClassifier

    model = make_pipeline(FeatureExtractor(), IncrementalRidgeClassifier())
    model.fit(images, labels)                      # images as `ContinualClassifier.predict` takes them

Shapes: n samples, D features, C classes.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator, ClassifierMixin, ClassNamePrefixFeaturesOutMixin, TransformerMixin
from sklearn.utils import check_random_state
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, validate_data
from torch import Tensor

from caprompt.backbones.weights import DEFAULT_BACKBONE, Backbone, load_backbone
from caprompt.classifier import ContinualClassifier
from caprompt.data.samples import Samples
from caprompt.data.sources import explain_without_skipping, read_images
from caprompt.engine.inference import choose_batch_size, map_samples
from caprompt.engine.inputs import InputPipeline
from caprompt.errors import InputError, OptionError
from caprompt.methods.components.heads import Head
from caprompt.methods.components.ridge import RandomRidge
from caprompt.methods.options import Options
from caprompt.utils.devices import resolve_device

__all__ = ["FeatureExtractor", "IncrementalRidgeClassifier"]


class FeatureExtractor(ClassNamePrefixFeaturesOutMixin, TransformerMixin, BaseEstimator):  # type: ignore[misc]
    """Images to features (n, D) of a frozen backbone, or of a saved model with all that it has learned.

    X are images as `ContinualClassifier.predict` takes them: paths, Pillow images, arrays, tensors, encoded bytes, or a dataset.
    Nothing is fitted to them, so a feature does not depend on the other images.

    Parameters
    ----------
    backbone
        Name or weights file of a backbone, or one from `caprompt.load_backbone`.
    model
        Folder of a saved model, or a `ContinualClassifier`: the features behind its predictions, with its prompts or adapters.
        Its own backbone is used.
    batch_size
        Images that are computed at once; None chooses.
    device
        "cpu", "cuda" or "auto".
    """

    def __init__(
        self,
        backbone: str | Path | Backbone = DEFAULT_BACKBONE,
        *,
        model: str | Path | ContinualClassifier | None = None,
        batch_size: int | None = None,
        device: str = "auto",
    ) -> None:
        self.backbone = backbone
        self.model = model
        self.batch_size = batch_size
        self.device = device

    def fit(self, X: Any = None, y: Any = None) -> FeatureExtractor:  # noqa: N803
        """Load the network; the images are not used."""
        self._network = self._load()
        self.n_features_out_ = self._network.width
        return self

    def transform(self, X: Any) -> NDArray[np.float32]:  # noqa: N803
        """Return the features of images (n, D)."""
        check_is_fitted(self)
        if not hasattr(self, "_network"):
            self._network = self._load()  # after unpickling
        images = read_images(X)
        if not images:
            return np.zeros((0, self.n_features_out_), dtype=np.float32)
        with explain_without_skipping():
            return self._network.extract(Samples(images, ("unlabeled",) * len(images)), self.batch_size)

    def _load(self) -> _Network:
        if self.model is None:
            return _BackboneNetwork(self.backbone, self.device)
        if isinstance(self.model, ContinualClassifier):
            return _ModelNetwork(self.model)
        return _ModelNetwork(ContinualClassifier.load(self.model, device=self.device))

    @property
    def _n_features_out(self) -> int:
        return int(self.n_features_out_)

    def __getstate__(self) -> dict[str, Any]:
        """Leave the network out of a pickle: it is loaded again from its files."""
        state: dict[str, Any] = super().__getstate__()
        return {name: value for name, value in state.items() if name != "_network"}

    def __sklearn_tags__(self) -> Any:
        """Say that images are not a table of numbers."""
        tags = super().__sklearn_tags__()
        tags.input_tags.two_d_array = False
        tags.no_validation = True
        return tags


class _Network:
    """A network that computes features (B, D) of batches of images (B, 3, S, S)."""

    width: int

    def __init__(self, backbone: Backbone, device: torch.device, options: Options) -> None:
        self.device, self.options = device, options
        self.pipeline = InputPipeline(backbone, device, cache_bytes=0)  # each image is read once
        self.width = backbone.config.width

    def compute(self, images: Tensor) -> Tensor:
        """Return features."""
        raise NotImplementedError

    @torch.no_grad()
    def extract(self, samples: Samples, batch_size: int | None) -> NDArray[np.float32]:
        """Return the features of samples, in their order."""
        size = choose_batch_size(len(samples), batch_size, self.device)
        targets = [0] * len(samples)
        parts, _ = map_samples(
            lambda images, _: self.compute(images.to(self.device)), self.pipeline, samples, targets, self.options, size
        )
        return torch.cat(parts).float().cpu().numpy()


class _BackboneNetwork(_Network):
    """A frozen backbone."""

    def __init__(self, backbone: str | Path | Backbone, device: str) -> None:
        loaded = backbone if isinstance(backbone, Backbone) else load_backbone(backbone)
        super().__init__(loaded, resolve_device(device), Options())
        self.vit = loaded.build().to(self.device)

    def compute(self, images: Tensor) -> Tensor:
        """Return the class token."""
        features: Tensor = self.vit(images)
        return features


class _ModelNetwork(_Network):
    """A model that has learned: the input of its classifier in the last pass over an image."""

    def __init__(self, model: ContinualClassifier) -> None:
        if not model.classes:
            raise InputError("the model has not learned any class yet, so it has no features of its own; give a backbone instead")
        super().__init__(model.backbone, model.device, model.method.input_options)
        self.width *= getattr(model.method, "num_blocks", 1)  # a classifier may read several blocks side by side
        self.model = model
        self.heads = [module for module in model.method.children() if isinstance(module, Head)]

    def compute(self, images: Tensor) -> Tensor:
        """Return what the classifier was given."""
        inputs: list[Tensor] = []
        hooks = [head.register_forward_pre_hook(lambda _, values: inputs.append(values[0])) for head in self.heads]
        # Where images may differ in their number of passes, the last pass is of some images only.
        fixed = {"cycles": 2} if getattr(self.options, "cycles", None) == "auto" else {}
        try:
            with self.model.override_options(fixed):
                self.model.method.predict(images)
        finally:
            for hook in hooks:
                hook.remove()
        if not inputs or inputs[-1].shape != (len(images), self.width):
            raise InputError(f"method '{self.model.method.name}' does not classify by one feature vector; give a backbone instead")
        return inputs[-1]


class IncrementalRidgeClassifier(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """Closed-form ridge regression on random projections (RanPAC), updated by adding to sums.

    `partial_fit` takes further samples of known classes and new classes alike, in any order, and forgets nothing: the result is
    the one that `fit` on all samples at once would have. It needs no list of classes in advance.

    Parameters
    ----------
    projections
        Number of random projections; memory grows with its square.
    alpha
        Strength of the regression, relative to the mean squared length of the projected features.
    scale
        Factor on the scores before the softmax of `predict_proba`.
    random_state
        Seed of the projection.
    """

    def __init__(
        self,
        projections: int = 1000,
        *,
        alpha: float = 0.1,
        scale: float = 20.0,
        random_state: int | np.random.RandomState | None = 0,
    ) -> None:
        self.projections = projections
        self.alpha = alpha
        self.scale = scale
        self.random_state = random_state

    def fit(self, X: ArrayLike, y: ArrayLike) -> IncrementalRidgeClassifier:  # noqa: N803
        """Learn samples X (n, D) of classes y (n,), from scratch."""
        return self._fit(X, y, None, reset=True)

    def partial_fit(self, X: ArrayLike, y: ArrayLike, classes: ArrayLike | None = None) -> IncrementalRidgeClassifier:  # noqa: N803
        """Learn further samples X (n, D) of classes y (n,), known or new.

        `classes` may name classes whose samples come later, as in other estimators; it is not needed.
        """
        return self._fit(X, y, classes, reset=not hasattr(self, "classes_"))

    def _fit(self, X: ArrayLike, y: ArrayLike, classes: ArrayLike | None, reset: bool) -> IncrementalRidgeClassifier:  # noqa: N803
        self._check_parameters()
        features, labels = validate_data(self, X, y, reset=reset, dtype=np.float64)
        check_classification_targets(labels)
        names = np.unique(labels) if classes is None else np.union1d(labels, np.asarray(classes))
        generator = torch.Generator()
        if reset:
            generator.manual_seed(int(check_random_state(self.random_state).randint(2**31 - 1)))
            self._ridge = RandomRidge(features.shape[1], self.projections, float(self.alpha)).double()
            self._arrived = names[:0]  # the class of each output
        elif _is_text(names) != _is_text(self._arrived):
            raise InputError("the labels are numbers in one call and text in another; use one of the two")
        new = names if reset else np.setdiff1d(names, self._arrived)
        if len(new):
            self._ridge.grow(len(new), generator)  # draws the projection with the first classes
            self._arrived = np.concatenate([self._arrived, new])
        self.classes_ = np.unique(self._arrived)
        output_of = {name: output for output, name in enumerate(self._arrived.tolist())}
        targets = torch.tensor([output_of[label] for label in labels.tolist()])
        self._ridge.partial_fit([(_to_tensor(features), targets)], generator)
        return self

    def _check_parameters(self) -> None:
        if not isinstance(self.projections, (int, np.integer)) or self.projections < 1:
            raise OptionError(f"projections must be a positive integer, not {self.projections!r}")
        for name in ("alpha", "scale"):
            value = getattr(self, name)
            if not isinstance(value, (int, float, np.integer, np.floating)) or not 0 < value < np.inf:
                raise OptionError(f"{name} must be a positive number, not {value!r}")

    def decision_function(self, X: ArrayLike) -> NDArray[np.float64]:  # noqa: N803
        """Return the score of each class: (n, C), or of two classes the score of the second above the first: (n,)."""
        scores = self._score_classes(X)
        return scores[:, 1] - scores[:, 0] if scores.shape[1] == 2 else scores

    def predict_proba(self, X: ArrayLike) -> NDArray[np.float64]:  # noqa: N803
        """Return class probabilities (n, C), in the order of `classes_`."""
        return torch.from_numpy(self.scale * self._score_classes(X)).softmax(dim=1).numpy()

    def predict(self, X: ArrayLike) -> NDArray[Any]:  # noqa: N803
        """Return the class of each sample (n,)."""
        best = self._score_classes(X).argmax(axis=1)
        labels: NDArray[Any] = self.classes_[best]
        return labels

    @torch.no_grad()
    def _score_classes(self, X: ArrayLike) -> NDArray[np.float64]:  # noqa: N803
        check_is_fitted(self)
        features = validate_data(self, X, reset=False, dtype=np.float64)
        scores: NDArray[np.float64] = self._ridge(_to_tensor(features)).numpy()
        return scores[:, np.argsort(self._arrived)]


def _to_tensor(features: NDArray[np.float64]) -> Tensor:
    return torch.from_numpy(np.require(features, requirements="W"))  # torch has no read-only tensors


def _is_text(labels: NDArray[Any]) -> bool:
    return labels.dtype.kind in "OSU"
