"""Options of methods: typed, validated, and declared in one place only.

`Options` has the options of every method (training loop and image transforms); a method's own class
adds to it. The saved `config.json`, `--set key=value`, TOML files and the listing of `caprompt
methods NAME` are all derived from these fields.
"""

from __future__ import annotations

import types
import typing
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError, ValidationInfo, field_validator

from caprompt.errors import OptionError, UnknownOptionError

__all__ = ["Options", "PromptOptions", "Schedule", "describe_options", "validate_options"]

Model = TypeVar("Model", bound=BaseModel)
Schedule = Literal["constant", "step", "cosine", "quarter-cosine"]

#: Largest values of options of the methods here, where larger ones would exhaust memory or overflow.
LARGEST: Mapping[str, float] = types.MappingProxyType(
    {
        **dict.fromkeys(("epochs", "batch_size", "align_epochs", "align_draws", "head_rate", "clip"), 1_000_000),
        **dict.fromkeys(("learning_rate", "align_rate", "weight_decay", "length", "general_length", "cycles", "max_cycles"), 1000),
        **dict.fromkeys(("pool", "components", "filters", "kernel", "hidden", "bottleneck", "rank", "centroids"), 10_000),
        "projections": 100_000,
    }
)
LARGEST_OF_ALL = 1e12  # of any other number
USUAL_CROP = 0.875  # 224 of 256 pixels


class Options(BaseModel):
    """Options that every method has: training loop, image transforms and precision."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    epochs: Annotated[int, Field(ge=1)] | Literal["auto"] = Field(
        5, description="training epochs per task; 'auto' follows from the number of images"
    )
    batch_size: Annotated[int, Field(ge=1)] | Literal["auto"] = Field(
        24, description="images per training step; 'auto' follows from the number of images"
    )
    learning_rate: Annotated[float, Field(gt=0)] | Literal["auto"] = Field(
        3e-3, description="learning rate of all trained parameters, the head's is times head_rate; 'auto' is the method's own"
    )
    head_rate: float = Field(1.0, ge=0, description="learning rate of the head relative to learning_rate")
    optimizer: Literal["adam", "adamw", "sgd"] = Field("adam", description="optimizer")
    momentum: float = Field(0.9, ge=0, lt=1, description="optimizer='sgd': momentum")
    weight_decay: float = Field(0.0, ge=0, description="L2 weight decay")
    clip: float = Field(1.0, ge=0, description="maximum gradient norm; 0 disables clipping")
    schedule: Schedule = Field(
        "cosine",
        description="learning rate schedule within a task; 'cosine' is half a period, 'quarter-cosine' a quarter, "
        "as in the code of CODA-Prompt and InfLoRA",
    )
    step_at: float = Field(0.6, gt=0, le=1, description="schedule='step': fraction of epochs after which the rate is divided by 10")
    crop_scale: tuple[float, float] = Field(
        (0.3, 1.0), description="area range of the random training crop, as fractions of the image"
    )
    flip: float = Field(0.5, ge=0, le=1, description="probability of a horizontal flip in training")
    brightness: float = Field(0.0, ge=0, le=1, description="strength of random brightness jitter in training")
    test_crop: Annotated[float, Field(ge=0.1, le=1)] | Literal["auto"] = Field(
        USUAL_CROP,
        description="size of the central crop at prediction, as a fraction of the short side; 'auto' is the method's own choice",
    )
    normalise: Literal["backbone", "none", "cifar100", "imagenet"] = Field(
        "backbone", description="image mean and std: those of the backbone, none, or those of CIFAR-100 or ImageNet"
    )
    precision: Literal["auto", "fp32", "bf16", "fp16", "fp8"] = Field(
        "auto", description="dtype of the frozen backbone; auto is bf16 on a GPU, else fp32; trained parameters are fp32"
    )
    compile: bool | Literal["auto"] = Field(
        "auto", description="train with torch.compile; auto: on a GPU, if a call is long enough to repay the time that takes"
    )
    recompute: bool = Field(False, description="activation checkpointing: recompute blocks in the backward pass to save GPU memory")

    #: Options that do not affect training and may be changed later; subclasses extend it.
    at_prediction: typing.ClassVar[frozenset[str]] = frozenset({"compile", "precision"})
    #: Removed options, with the value at which models saved with them can still be loaded.
    retired: typing.ClassVar[Mapping[str, Any]] = types.MappingProxyType({})
    #: Added options, with the value that models saved before the option existed were trained with.
    #: Needed only where that is not the default; subclasses declare their own.
    before_added: typing.ClassVar[Mapping[str, Any]] = types.MappingProxyType({})

    @property
    def eval_crop(self) -> float:
        """The size of the central crop at prediction; the usual one where the method is yet to choose it."""
        return USUAL_CROP if self.test_crop == "auto" else self.test_crop

    @classmethod
    def complete_saved(cls, saved: Mapping[str, Any]) -> dict[str, Any]:
        """Return saved options as of today: without retired ones, and with those added since, at their old behavior."""
        added = {name: value for base in reversed(cls.__mro__) for name, value in getattr(base, "before_added", {}).items()}
        kept = {name: value for name, value in saved.items() if name not in cls.retired or value != cls.retired[name]}
        return {**added, **kept}

    @field_validator("crop_scale")
    @classmethod
    def check_crop_scale(cls, value: tuple[float, float]) -> tuple[float, float]:
        """Require an ordered range of positive fractions."""
        if not 0 < value[0] <= value[1] <= 1:
            raise ValueError("needs 0 < smallest <= largest <= 1")
        return value

    @field_validator("*")
    @classmethod
    def check_size(cls, value: Any, info: ValidationInfo) -> Any:
        """Refuse numbers that no computation survives; subclasses inherit this for their own options."""
        largest = LARGEST.get(info.field_name or "", LARGEST_OF_ALL)
        if isinstance(value, (int, float)) and abs(value) > largest:
            raise ValueError(f"it should be at most {largest:,.0f}")
        return value


class PromptOptions(Options):
    """Options that every method with prompts has."""

    length: int = Field(10, ge=1, description="prompt rows per layer")


def validate_options(model: type[Model], values: Mapping[str, Any], owner: str) -> Model:
    """Build `model` from values; raise an `OptionError` of one sentence for the first invalid one.

    >>> validate_options(Options, {"epoch": 3}, "caprompt")
    Traceback (most recent call last):
    caprompt.errors.UnknownOptionError: unknown option 'epoch' for caprompt (did you mean 'epochs'?); there are: batch_size, ...
    >>> validate_options(Options, {"epochs": "many"}, "caprompt")
    Traceback (most recent call last):
    caprompt.errors.OptionError: option 'epochs' of caprompt cannot be 'many': it should be a valid integer or 'auto'
    """
    known = model.model_fields
    for key in values:
        if key not in known:
            raise UnknownOptionError(key, owner, known)
    try:
        return model.model_validate(dict(values))
    except ValidationError as error:
        problems = error.errors()
        key = str(problems[0]["loc"][0]) if problems[0]["loc"] else ""
        # Of a union of types, pydantic names a problem for each.
        reason = _join_problems([each["msg"] for each in problems if each["loc"][:1] == problems[0]["loc"][:1]])
        value = values[key] if key in values or key not in known else known[key].default
        raise OptionError(f"option '{key}' of {owner} cannot be '{_shorten(value)}': {reason}", key) from error


def _shorten(value: Any) -> str:
    """Return a value as a few words on one line.

    >>> _shorten("a\\nb"), len(_shorten("x" * 1000))
    ('a b', 80)
    """
    text = " ".join(str(value).split())
    return text if len(text) <= 80 else f"{text[:77]}..."


def _join_problems(messages: Sequence[str]) -> str:
    """Return messages of pydantic about one option as the end of a sentence.

    >>> _join_problems(["Value error, needs 0 < smallest"])
    'needs 0 < smallest'
    >>> _join_problems(["Input should be a valid integer, unable to parse string as an integer", "Input should be 'auto'"])
    "it should be a valid integer or 'auto'"
    """
    wanted = "Input should be "
    reasons = list(dict.fromkeys(message.removeprefix("Value error, ").partition(", unable to parse")[0] for message in messages))
    if all(reason.startswith(wanted) for reason in reasons):
        return "it should be " + " or ".join(reason.removeprefix(wanted) for reason in reasons)
    return " or ".join(reason[:1].lower() + reason[1:] for reason in reasons)


def describe_options(model: type[BaseModel]) -> list[tuple[str, str, str, str]]:
    """Return (name, type, default, description) of each option, for tables.

    >>> describe_options(Options)[0]
    ('epochs', 'int | auto', '5', "training epochs per task; 'auto' follows from the number of images")
    """
    return [(name, _format_type(f.annotation), str(f.default), f.description or "") for name, f in model.model_fields.items()]


def _format_type(annotation: Any) -> str:
    """Format a type annotation for users.

    >>> _format_type(int), _format_type(Literal["a", "b"]), _format_type(int | Literal["auto"])
    ('int', 'a | b', 'int | auto')
    """
    origin = typing.get_origin(annotation)
    if origin is Literal:
        return " | ".join(map(str, typing.get_args(annotation)))
    if origin in (types.UnionType, typing.Union):
        return " | ".join(_format_type(part) for part in typing.get_args(annotation))
    if origin is tuple:
        return ",".join("..." if part is Ellipsis else _format_type(part) for part in typing.get_args(annotation))
    if origin is typing.Annotated:
        return _format_type(typing.get_args(annotation)[0])
    return getattr(annotation, "__name__", str(annotation))
