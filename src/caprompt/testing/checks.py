"""`check_method`, and the list of checks behind it."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from caprompt.classifier import ContinualClassifier
from caprompt.methods import get_method
from caprompt.testing import model_behavior, step_behavior
from caprompt.testing.model_behavior import ModelFactory
from caprompt.testing.tiny import write_backbone

__all__ = ["Check", "ModelFactory", "check_method", "list_checks", "make_model_factory"]


@dataclass(frozen=True)
class Check:
    """One property that every method must have."""

    function: Callable[[ModelFactory], None]

    @property
    def name(self) -> str:
        """The name of the property."""
        return self.function.__name__.removeprefix("check_")

    @property
    def needs_gpu(self) -> bool:
        """Whether the property concerns a GPU only."""
        return self.function in (
            step_behavior.check_captured_steps_equal_eager_steps,
            model_behavior.check_same_bits_in_every_batch,
        )

    def __str__(self) -> str:
        return self.name

    def __call__(self, make: ModelFactory) -> None:
        """Check models that a factory makes; raise an AssertionError if the property does not hold."""
        self.function(make)


def list_checks() -> list[Check]:
    """Return every check, by module and name; those that need a GPU only where there is one."""
    functions = [
        value
        for module in (model_behavior, step_behavior)
        for name, value in sorted(vars(module).items())
        if name.startswith("check_")
    ]
    checks = [Check(function) for function in functions]
    return [check for check in checks if torch.cuda.is_available() or not check.needs_gpu]


def make_model_factory(method: str, backbone: str | Path) -> ModelFactory:
    """Return a function that makes quick models of a method; its arguments override the method's `check_options`.

    Models are on the CPU, where float32 results do not depend on the GPU.
    """

    def make(**options: Any) -> ContinualClassifier:
        return ContinualClassifier(method, backbone, **{"device": "cpu", **get_method(method).check_options, **options})

    return make


def check_method(method: str) -> None:
    """Run every check on a registered method with a tiny ViT; raise an AssertionError that names the first one that fails."""
    get_method(method)  # an unknown name is an error of its own, not a failed check
    with tempfile.TemporaryDirectory() as folder:
        make = make_model_factory(method, write_backbone(Path(folder) / "tiny.safetensors"))
        for check in list_checks():
            try:
                check(make)
            except Exception as error:
                raise AssertionError(f"method '{method}' fails the check '{check.name}': {error}") from error
