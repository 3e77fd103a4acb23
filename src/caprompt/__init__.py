"""Learn new image classes as they come, on a frozen vision transformer, without forgetting and without storing images.

>>> import caprompt
>>> "ContinualClassifier" in caprompt.__all__
True
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from caprompt.backbones import list_backbones, load_backbone
    from caprompt.classifier import ContinualClassifier
    from caprompt.data import list_datasets, load_dataset
    from caprompt.errors import CapromptError, InputError
    from caprompt.experiments.audit import Audit, audit
    from caprompt.experiments.config import RunConfig
    from caprompt.experiments.execution import run_experiment
    from caprompt.experiments.run_folder import RunResult
    from caprompt.methods import list_methods
    from caprompt.outputs import Evaluation, Prediction

__version__ = "0.1.0"
__all__ = [
    "Audit",
    "CapromptError",
    "ContinualClassifier",
    "Evaluation",
    "InputError",
    "Prediction",
    "RunConfig",
    "RunResult",
    "__version__",
    "audit",
    "list_backbones",
    "list_datasets",
    "list_methods",
    "load_backbone",
    "load_dataset",
    "run_experiment",
]

_MODULES = {
    "Audit": "caprompt.experiments.audit",
    "CapromptError": "caprompt.errors",
    "ContinualClassifier": "caprompt.classifier",
    "Evaluation": "caprompt.outputs",
    "InputError": "caprompt.errors",
    "Prediction": "caprompt.outputs",
    "RunConfig": "caprompt.experiments.config",
    "RunResult": "caprompt.experiments.run_folder",
    "audit": "caprompt.experiments.audit",
    "list_backbones": "caprompt.backbones",
    "list_datasets": "caprompt.data",
    "list_methods": "caprompt.methods",
    "load_backbone": "caprompt.backbones",
    "load_dataset": "caprompt.data",
    "run_experiment": "caprompt.experiments.execution",
}


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used, so that `import caprompt` does not import torch."""
    if name not in _MODULES:
        raise AttributeError(f"module 'caprompt' has no attribute '{name}'")
    return getattr(import_module(_MODULES[name]), name)


def __dir__() -> list[str]:
    """Return the public names, also those that are not imported yet."""
    return __all__
