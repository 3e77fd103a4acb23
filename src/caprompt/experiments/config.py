"""Runs as the command line starts them: flat settings, several seeds, and where each run is kept."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationInfo, field_validator

from caprompt import methods
from caprompt.backbones.weights import DEFAULT_BACKBONE
from caprompt.data.datasets.registry import DATASETS
from caprompt.errors import OptionError, did_you_mean
from caprompt.experiments.presets import load_preset
from caprompt.methods import get_method
from caprompt.methods.components.batch_leak import ReleasedOptions
from caprompt.methods.options import validate_options

__all__ = ["RunConfig", "build_run_config", "recommended_options", "resolve_config", "split_settings"]


class RunConfig(BaseModel):
    """What a run is made of. Options of the method stand in `options`; the data set may recommend some, the caller's win."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    dataset: str = Field("digits", description="a data set's name, or a folder or CSV of images")
    method: str = Field("caprompt", description="a method's name")
    backbone: str = Field(DEFAULT_BACKBONE, description="a backbone's name or file")
    seed: int = Field(0, ge=0, description="class order, initialisation, batches and augmentation follow from it")
    tasks: int | tuple[int, ...] | tuple[tuple[str, ...], ...] | None = Field(
        None, description="number of tasks, their sizes, or their class names"
    )
    order: Literal["shuffled", "natural"] = Field("shuffled", description="class order: by seed, or as the names sort")
    validation: float = Field(0.0, ge=0, lt=1, description="test on this share of the training images instead of the test images")
    give_task: bool = Field(
        False, description="tell the method each test image's true task (the paper's appendix); not a fair test"
    )
    per_class: int | None = Field(
        None, ge=1, description="use at most this many training images of each class, and as many test images; for quick trials"
    )
    joint: bool = Field(False, description="learn all classes at once, the upper bound; test by the tasks they would have come in")
    options: Mapping[str, Any] = Field(default_factory=dict, description="options of the method")

    @field_validator("joint")
    @classmethod
    def gives_no_task(cls, value: bool, info: ValidationInfo) -> bool:
        """Classes that are learned at once are one task, so there is none to give away."""
        if value and info.data.get("give_task"):
            raise ValueError("there is no task to give away (give_task) where all classes are one")
        return value


def recommended_options(options: Mapping[str, Any], method: str) -> dict[str, Any]:
    """Those of a data set's recommended options that this method has."""
    known = get_method(method).options_class.model_fields
    return {name: value for name, value in options.items() if name in known}


def preset_settings(name: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """What a preset says where these settings are given."""
    usual = RunConfig()
    method, dataset, backbone = (str(given.get(key, getattr(usual, key))) for key in ("method", "dataset", "backbone"))
    return load_preset(name, method, dataset, backbone, given)


def build_run_config(given: Mapping[str, Any]) -> RunConfig:
    """The configuration of a run from flat settings: a run's own, and options of its method."""
    method = str(given.get("method", RunConfig.model_fields["method"].default))
    given = check_protocol(given, method)
    own = [name for name in RunConfig.model_fields if name != "options"]
    chosen, options = split_settings(given, own, list(methods.get_method(method).options_class.model_fields), owner=method)
    validate_options(methods.get_method(method).options_class, options, owner=method)
    return validate_options(RunConfig, {**chosen, "options": options}, owner="run")


def check_protocol(given: Mapping[str, Any], method: str) -> Mapping[str, Any]:
    """Settings whose protocol the method has; one without a leaking program is honest in any case."""
    leaking = [name for name, each in methods.list_methods().items() if issubclass(each.options_class, ReleasedOptions)]
    if method in leaking or "protocol" not in given:
        return given
    if given["protocol"] != "honest":
        raise OptionError(f"{method} is always honest; the protocol '{given['protocol']}' is there for: {', '.join(leaking)}")
    return {name: value for name, value in given.items() if name != "protocol"}


def split_settings(
    settings: Mapping[str, Any], own: Sequence[str], options: Sequence[str], owner: str
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Divide flat settings into a command's own and the method's options; a name that is neither gets a hint.

    >>> split_settings({"seed": 1, "epochs": 2}, ["seed"], ["epochs"], "caprompt")
    ({'seed': 1}, {'epochs': 2})
    """
    known = sorted({*own, *options})
    for key in settings:
        if key not in known:
            raise OptionError(f"unknown option '{key}' for {owner}{did_you_mean(key, known)}; there are: {', '.join(known)}")
    return ({k: v for k, v in settings.items() if k in own}, {k: v for k, v in settings.items() if k not in own})


def resolve_config(config: RunConfig) -> RunConfig:
    """The same run with nothing left to defaults: every option of the method, and the number of tasks."""
    data = DATASETS.get(config.dataset)
    options_class = get_method(config.method).options_class
    given = {**recommended_options(data.options if data else {}, config.method), **config.options}
    options = validate_options(options_class, given, owner=config.method).model_dump(mode="json")
    tasks = config.tasks if config.tasks is not None or data is None else data.tasks
    return config.model_copy(update={"options": options, "tasks": tasks})
