"""The main public class, `ContinualClassifier`, and what is done with one over its life.

`state` is what a model is, `prediction` how it predicts, `model` how it learns; `editing` changes saved models.
"""

from __future__ import annotations

from caprompt.classifier.explanation import Explanation
from caprompt.classifier.model import ContinualClassifier
from caprompt.classifier.prediction import LabeledOutput

__all__ = ["ContinualClassifier", "Explanation", "LabeledOutput"]
