"""The main public class, `ContinualClassifier` (`model`), and what is done with one over its life."""

from __future__ import annotations

from caprompt.classifier.explanation import Explanation
from caprompt.classifier.model import ContinualClassifier, LabeledOutput

__all__ = ["ContinualClassifier", "Explanation", "LabeledOutput"]
