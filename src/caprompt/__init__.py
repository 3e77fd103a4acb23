"""Learn new image classes as they come, on a frozen vision transformer, without forgetting and without keeping images.

>>> import caprompt
>>> "torch" in caprompt.__all__, "ContinualClassifier" in caprompt.__all__
(False, True)
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from caprompt.classifier import ContinualClassifier, Evaluation, Prediction
    from caprompt.errors import CapromptError, InputError

__version__ = "0.1.0"
__all__ = ["CapromptError", "ContinualClassifier", "Evaluation", "InputError", "Prediction", "__version__"]

_HOME = {
    "CapromptError": "caprompt.errors",
    "InputError": "caprompt.errors",
    "ContinualClassifier": "caprompt.classifier",
    "Evaluation": "caprompt.classifier",
    "Prediction": "caprompt.classifier",
}


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used, so that `import caprompt` costs no torch."""
    if name not in _HOME:
        raise AttributeError(f"module 'caprompt' has no attribute '{name}'")
    return getattr(import_module(_HOME[name]), name)
