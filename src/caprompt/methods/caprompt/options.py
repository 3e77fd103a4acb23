"""Options of CAPrompt: constraints, cycles, aggregation, classifier, and what the regression is fitted to."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, ValidationInfo, field_validator, model_validator

from caprompt.methods.components.alignment import ReplayOptions
from caprompt.methods.components.batch_leak import ReleasedOptions
from caprompt.methods.components.prefix import PrefixOptions
from caprompt.methods.options import USUAL_CROP

__all__ = ["CAPromptOptions"]

#: What goes with the paper's classifier, where nothing else is said.
PAPER_DEFAULTS: Mapping[str, Any] = MappingProxyType(
    {
        "epochs": 5,
        "batch_size": 24,
        "learning_rate": 1e-2,
        "training_prompt": "mixture",
        "training_head": "linear",
        "alpha": 5.0,
        "beta": 0.2,
        "modulation": 0.0,
        "kept_change": 1.0,
        "readout_blocks": 1,
        "mirror": False,
        "test_crop": USUAL_CROP,
    }
)


class CAPromptOptions(ReplayOptions, PrefixOptions, ReleasedOptions):
    """Options of CAPrompt: constraints, cycles, aggregation (the switches of the ablation table) and classifier.

    The defaults are what we recommend (docs/experiments.md says why). With `classifier="aligned"` those of `PAPER_DEFAULTS` are
    the paper's; all of the paper's own values are the preset 'paper'.
    """

    epochs: Annotated[int, Field(ge=1)] | Literal["auto"] = Field(
        "auto", description="training epochs per task; 'auto' follows from the number of images"
    )
    batch_size: Annotated[int, Field(ge=1)] | Literal["auto"] = Field(
        "auto", description="images per training step; 'auto' follows from the number of images"
    )
    learning_rate: Annotated[float, Field(gt=0)] | Literal["auto"] = Field(
        "auto", description="learning rate of the prompts, the head's is times head_rate; 'auto' follows from the backbone's width"
    )
    test_crop: Annotated[float, Field(ge=0.1, le=1)] | Literal["auto"] = Field(
        "auto",
        description="size of the central crop at prediction, as a fraction of the short side; 'auto' is 0.875, or 1 if the first "
        "task's images have less than half the side of the network's input",
    )
    training_prompt: Literal["own", "mixture"] = Field(
        "own", description="prompt with which a task is trained: its own, or the mixture of all tasks' prompts, as in the paper"
    )
    training_head: Literal["cosine", "linear"] = Field(
        "cosine", description="head that prompts are trained with: cosines with rows that start as class means, or linear"
    )
    alpha: float = Field(0.0, ge=0, description="training_prompt='mixture': weight of the concave constraint; 0 disables it")
    beta: float = Field(0.0, ge=0, description="training_prompt='mixture': weight of the linear constraint; 0 disables it")
    modulation: float = Field(
        0.1,
        ge=0,
        description="factor on the scales and shifts that a prompt has for attention and MLP of each block; 0 disables them",
    )
    kept_change: Annotated[float, Field(gt=0, le=1)] | Literal["auto"] = Field(
        "auto",
        description="share of what training changes in a prompt that is kept; 'auto': n / (n + 6) where a call has n < 50 images "
        "of a class, on average, else all",
    )
    cycles: Annotated[int, Field(ge=1)] | Literal["auto"] = Field(
        2, description="forward passes at prediction; 'auto' stops for each image once its task weights have converged"
    )
    max_cycles: int = Field(5, ge=1, description="cycles='auto': maximum number of passes")
    settled: float = Field(0.02, gt=0, description="cycles='auto': converged if all task weights change by less than this")
    sure: float = Field(
        0.95, gt=0, le=1, description="cycles='auto', classifier='ridge': stop once the top class has at least this probability"
    )
    aggregation: bool = Field(
        True, description="mix the prompts of all tasks; if false, use only that of the task predicted by a query pass"
    )
    classifier: Literal["ridge", "aligned"] = Field(
        "ridge",
        validate_default=True,
        description="closed-form ridge regression, or the paper's linear head aligned with replayed features",
    )
    first_pass: Literal["prompted", "query"] = Field(
        "prompted",
        description="prompt of the first pass: the first task's (classifier='aligned': all, equally mixed); 'query': none",
    )
    projections: int = Field(
        10_000, ge=1, description="classifier='ridge': number of random projections; model size grows with its square"
    )
    ridge_strength: Annotated[float, Field(gt=0)] | Literal["auto", "held-out"] = Field(
        "auto",
        description="classifier='ridge': its lambda, relative to the inputs' mean square; 'auto' selects it by few images, each "
        "left out in turn; 'held-out' selects a power of ten by a fifth of the images",
    )
    readout_blocks: Annotated[int, Field(ge=1)] | Literal["auto"] = Field(
        "auto",
        description="classifier='ridge': number of last blocks whose class tokens it reads; 'auto' selects it by the first task's "
        "images, each left out in turn",
    )
    mirror: bool = Field(
        True, description="classifier='ridge': fit it to mirrored images as well, unless flip is 0 or ridge_strength 'held-out'"
    )
    crops: bool | Literal["auto"] = Field(
        "auto",
        description="classifier='ridge': fit it to a wider and a narrower crop of each image as well, unless ridge_strength is "
        "'held-out'; 'auto': where a call has fewer than 50 images of a class, on average, and neither exact_sums nor "
        "keep_features is set",
    )
    exact_sums: bool = Field(
        False,
        description="classifier='ridge': add up features in float64, so that their sums do not depend on their order or on the "
        "number of processes; the model takes twice the space",
    )
    keep_features: bool = Field(
        False,
        description="classifier='ridge': keep the features of every image, so that those of a class can be taken out again; "
        "with few images the model is then smaller, but it reveals more of them",
    )
    ridge_scale: float = Field(20.0, gt=0, description="classifier='ridge': factor on the logits")

    at_prediction: ClassVar[frozenset[str]] = PrefixOptions.at_prediction | {
        "cycles",
        "max_cycles",
        "settled",
        "sure",
        "ridge_scale",
    }

    retired: ClassVar[Mapping[str, Any]] = MappingProxyType({"patches": False})
    before_added: ClassVar[Mapping[str, Any]] = MappingProxyType(
        {
            "training_prompt": "mixture",
            "training_head": "linear",
            "modulation": 0.0,
            "kept_change": 1.0,
            "ridge_strength": "held-out",
            "readout_blocks": 1,
            "mirror": False,
            "crops": False,
        }
    )

    @model_validator(mode="before")
    @classmethod
    def fill_paper_defaults(cls, values: Any) -> Any:
        """Use the paper's values with the paper's classifier, and its mixture with its constraints, unless the caller says else."""
        if not isinstance(values, Mapping):
            return values
        if values.get("classifier") == "aligned":
            unused = {"alpha", "beta"} if values.get("training_prompt") == "own" else set()
            return {**{name: value for name, value in PAPER_DEFAULTS.items() if name not in unused}, **values}
        constrained = values.get("alpha") or values.get("beta")
        return {"training_prompt": "mixture", "training_head": "linear", **values} if constrained else values

    @field_validator("alpha", "beta")
    @classmethod
    def check_mixture(cls, value: float, info: ValidationInfo) -> float:
        """Refuse a constraint on the mixture where training does not use the mixture."""
        if value and (info.data.get("training_prompt"), info.data.get("training_head")) != ("mixture", "linear"):
            raise ValueError("it constrains the mixture of prompts; it needs training_prompt=mixture and training_head=linear")
        return value

    @field_validator("classifier")
    @classmethod
    def check_released_classifier(cls, value: str, info: ValidationInfo) -> str:
        """Refuse the ridge regression with `protocol="released"`: the authors' code has none."""
        if value == "ridge" and info.data.get("protocol") == "released":
            raise ValueError("protocol 'released' is the authors' code, which has only classifier 'aligned' (see preset 'paper')")
        if value == "aligned" and info.data.get("training_head") == "cosine":
            raise ValueError("its head is linear; leave out training_head")
        return value
