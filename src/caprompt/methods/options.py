"""Options: typed, checked, and listed in one place only, the class that declares them.

`Options` holds what every method has (the loop and the image recipe); a method's own class adds to it. The saved `config.json`,
`--set key=value`, TOML files and the listing of `caprompt methods NAME` are all derived from these fields.
"""

from __future__ import annotations

import types
import typing
from collections.abc import Mapping
from typing import Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from caprompt.errors import OptionError, did_you_mean

__all__ = ["Options", "describe_options", "validate_options"]

Model = TypeVar("Model", bound=BaseModel)


class Options(BaseModel):
    """What every method has: the training loop and the image recipe."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    epochs: int = Field(5, ge=1, description="passes over a task's training images")
    batch_size: int = Field(24, ge=1, description="images per training step")
    learning_rate: float = Field(3e-3, gt=0, description="the rate for all that learns, and for the head times head_rate")
    head_rate: float = Field(1.0, ge=0, description="the head's learning rate relative to learning_rate")
    optimizer: Literal["adam", "adamw", "sgd"] = Field("adam", description="how gradients are followed")
    momentum: float = Field(0.9, ge=0, lt=1, description="optimizer 'sgd': momentum")
    weight_decay: float = Field(0.0, ge=0, description="decay of what is trained")
    clip: float = Field(1.0, ge=0, description="largest gradient norm; 0 for no limit")
    schedule: Literal["constant", "step", "cosine"] = Field("cosine", description="how the rate falls within a task")
    step_at: float = Field(0.6, gt=0, le=1, description="schedule 'step': the share of epochs after which the rate is a tenth")
    crop_scale: tuple[float, float] = Field((0.3, 1.0), description="share of a training picture that a random crop keeps")
    flip: float = Field(0.5, ge=0, le=1, description="how often a training picture is mirrored")
    brightness: float = Field(0.0, ge=0, le=1, description="strength of random brightness")
    test_crop: float = Field(0.875, gt=0, le=1, description="side of the central crop at the test, as a share of the short side")

    @field_validator("crop_scale")
    @classmethod
    def shares_in_order(cls, value: tuple[float, float]) -> tuple[float, float]:
        """A crop keeps a share of the picture between two positive ones."""
        if not 0 < value[0] <= value[1] <= 1:
            raise ValueError("needs 0 < smallest <= largest <= 1")
        return value

    normalise: Literal["backbone", "none", "cifar100", "imagenet"] = Field(
        "backbone", description="mean and deviation for pictures: the backbone's own, none, or those of CIFAR-100 or ImageNet"
    )

    precision: Literal["auto", "fp32", "bf16", "fp16", "fp8"] = Field(
        "auto", description="numbers that the frozen backbone computes in; auto is bf16 on a GPU, else fp32; what learns is fp32"
    )

    compile: bool = Field(False, description="let the compiler fuse kernels; on a GPU it pays for long training")
    recompute: bool = Field(False, description="save GPU memory: compute a block's activations again for the gradient")

    #: Options that may be changed on a trained model, since they do not concern training; children add to it.
    at_prediction: typing.ClassVar[frozenset[str]] = frozenset({"compile", "precision"})
    #: Options that are no more, each with the value at which nothing is lost: models that were saved with it can be read.
    retired: typing.ClassVar[Mapping[str, Any]] = types.MappingProxyType({})


def validate_options(model: type[Model], values: Mapping[str, Any], owner: str) -> Model:
    """Build `model` from values; the first thing wrong with them becomes one sentence.

    >>> validate_options(Options, {"epoch": 3}, "caprompt")
    Traceback (most recent call last):
    caprompt.errors.OptionError: unknown option 'epoch' for caprompt (did you mean 'epochs'?); there are: batch_size, ...
    >>> validate_options(Options, {"epochs": "many"}, "caprompt")
    Traceback (most recent call last):
    caprompt.errors.OptionError: option 'epochs' of caprompt cannot be 'many': input should be a valid integer, ...
    """
    known = model.model_fields
    for key in values:
        if key not in known:
            raise OptionError(
                f"unknown option '{key}' for {owner}{did_you_mean(key, known)}; there are: {', '.join(sorted(known))}"
            )
    try:
        return model.model_validate(dict(values))
    except ValidationError as error:
        first = error.errors()[0]
        key = str(first["loc"][0]) if first["loc"] else ""
        reason = first["msg"][0].lower() + first["msg"][1:]
        raise OptionError(f"option '{key}' of {owner} cannot be '{values.get(key)}': {reason}") from error


def describe_options(model: type[BaseModel]) -> list[tuple[str, str, str, str]]:
    """Each option as (name, type, default, meaning), for tables.

    >>> describe_options(Options)[0]
    ('epochs', 'int', '5', "passes over a task's training images")
    """
    return [(name, format_type(f.annotation), str(f.default), f.description or "") for name, f in model.model_fields.items()]


def format_type(annotation: Any) -> str:
    """A type as a person writes it.

    >>> format_type(int), format_type(Literal["a", "b"]), format_type(int | Literal["auto"])
    ('int', 'a | b', 'int | auto')
    """
    origin = typing.get_origin(annotation)
    if origin is Literal:
        return " | ".join(map(str, typing.get_args(annotation)))
    if origin in (types.UnionType, typing.Union):
        return " | ".join(format_type(part) for part in typing.get_args(annotation))
    if origin is tuple:
        return ",".join("..." if part is Ellipsis else format_type(part) for part in typing.get_args(annotation))
    if origin is typing.Annotated:
        return format_type(typing.get_args(annotation)[0])
    return getattr(annotation, "__name__", str(annotation))
