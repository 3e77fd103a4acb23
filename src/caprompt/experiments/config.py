"""`RunConfig`: what an experiment consists of; built from flat settings and presets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationInfo, field_validator

from caprompt.backbones.weights import DEFAULT_BACKBONE
from caprompt.data.datasets.registry import DATASETS
from caprompt.errors import OptionError, UnknownOptionError
from caprompt.experiments.presets import load_preset
from caprompt.methods import get_method, list_methods
from caprompt.methods.components.batch_leak import ReleasedOptions
from caprompt.methods.options import validate_options

__all__ = [
    "RunConfig",
    "build_run_config",
    "load_preset_settings",
    "resolve_config",
    "select_recommended_options",
    "split_settings",
]


class RunConfig(BaseModel):
    """Configuration of a run. `options` are those of the method; the dataset may recommend some, which the caller's override."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    dataset: str = Field("beetles", description="a dataset's name, or a folder or CSV of images")
    method: str = Field("caprompt", description="a method's name")
    backbone: str = Field(DEFAULT_BACKBONE, description="a backbone's name or file")
    seed: int = Field(0, ge=0, description="class order, initialization, batches and augmentation are derived from it")
    tasks: int | tuple[int, ...] | tuple[tuple[str, ...], ...] | None = Field(
        None, description="number of tasks, their sizes, or their class names"
    )
    order: Literal["shuffled", "natural"] = Field("shuffled", description="class order: by seed, or sorted by name")
    validation: float = Field(0.0, ge=0, lt=1, description="test on this share of the training images instead of the test images")
    give_task: bool = Field(
        False, description="pass each test image's true task to the method (the paper's appendix); not a fair test"
    )
    per_class: int | None = Field(
        None, ge=1, description="use at most this many training images of each class, and as many test images; for quick trials"
    )
    joint: bool = Field(
        False, description="learn all classes at once, as an upper bound; accuracies are reported for the tasks all the same"
    )
    options: Mapping[str, Any] = Field(default_factory=dict, description="options of the method")

    @field_validator("joint")
    @classmethod
    def check_no_given_task(cls, value: bool, info: ValidationInfo) -> bool:
        """Refuse `give_task` where all classes are one task."""
        if value and info.data.get("give_task"):
            raise ValueError("give_task has no meaning where all classes are learned as one task")
        return value


def select_recommended_options(options: Mapping[str, Any], method: str) -> dict[str, Any]:
    """Return those of a dataset's recommended options that the method has."""
    known = get_method(method).options_class.model_fields
    return {name: value for name, value in options.items() if name in known}


def load_preset_settings(name: str, overrides: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of a preset, given the settings that override it."""
    defaults = RunConfig()
    method, dataset, backbone = (str(overrides.get(key, getattr(defaults, key))) for key in ("method", "dataset", "backbone"))
    return load_preset(name, method, dataset, backbone, overrides)


def build_run_config(settings: Mapping[str, Any]) -> RunConfig:
    """Build the configuration of a run from flat settings: those of the run, and options of its method."""
    method = str(settings.get("method", RunConfig.model_fields["method"].default))
    settings = check_protocol(settings, method)
    own = [name for name in RunConfig.model_fields if name != "options"]
    options_class = get_method(method).options_class
    fields, options = split_settings(settings, own, list(options_class.model_fields), owner=method)
    validate_options(options_class, options, owner=method)
    return validate_options(RunConfig, {**fields, "options": options}, owner="run")


def check_protocol(settings: Mapping[str, Any], method: str) -> Mapping[str, Any]:
    """Return settings whose protocol the method supports; a method that cannot leak is honest without saying so."""
    leaking = [name for name, each in list_methods().items() if issubclass(each.options_class, ReleasedOptions)]
    if method in leaking or "protocol" not in settings:
        return settings
    if settings["protocol"] != "honest":
        raise OptionError(f"{method} is always honest; protocol '{settings['protocol']}' exists for: {', '.join(leaking)}")
    return {name: value for name, value in settings.items() if name != "protocol"}


def split_settings(
    settings: Mapping[str, Any], own: Sequence[str], options: Sequence[str], owner: str
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Split flat settings into those of a command and options of the method; an unknown name raises an error with a hint.

    >>> split_settings({"seed": 1, "epochs": 2}, ["seed"], ["epochs"], "caprompt")
    ({'seed': 1}, {'epochs': 2})
    """
    known = {*own, *options}
    for key in settings:
        if key not in known:
            raise UnknownOptionError(key, owner, known)
    return ({k: v for k, v in settings.items() if k in own}, {k: v for k, v in settings.items() if k not in own})


def resolve_config(config: RunConfig) -> RunConfig:
    """Return the same configuration with nothing left to defaults: every option of the method, and the number of tasks."""
    data = DATASETS.get(config.dataset)
    options_class = get_method(config.method).options_class
    options = {**select_recommended_options(data.options if data else {}, config.method), **config.options}
    resolved = validate_options(options_class, options, owner=config.method).model_dump(mode="json")
    tasks = config.tasks if config.tasks is not None or data is None else data.tasks
    return config.model_copy(update={"options": resolved, "tasks": tasks})
