"""The options of CAPrompt: the paper's hyper-parameters, the switches of its ablation table, and the choice of classifier.

The paper's own choice is `--preset paper`; the defaults are what we recommend. docs/experiments.md says why.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, ValidationInfo, field_validator

from caprompt.methods.components.alignment import ReplayOptions
from caprompt.methods.components.batch_leak import ReleasedOptions
from caprompt.methods.components.prefix import PrefixOptions

__all__ = ["CAPromptOptions"]


class CAPromptOptions(ReplayOptions, PrefixOptions, ReleasedOptions):
    """How prompts are mixed, held to the constraints, and read."""

    learning_rate: float = Field(1e-2, gt=0, description="the rate for the prompts, and for the head times head_rate")

    alpha: float = Field(5.0, ge=0, description="weight of the concave constraint; 0 switches it off")
    beta: float = Field(0.2, ge=0, description="weight of the linear constraint; 0 switches it off")
    cycles: Annotated[int, Field(ge=1)] | Literal["auto"] = Field(
        2, description="passes at prediction; 'auto' stops each image when it has settled"
    )
    max_cycles: int = Field(5, ge=1, description="the most passes that cycles='auto' takes")
    settled: float = Field(0.02, gt=0, description="cycles='auto': weights that all change less than this have settled")
    sure: float = Field(
        0.95, gt=0, le=1, description="cycles='auto', classifier='ridge': an answer at least this probable needs no further pass"
    )
    aggregation: bool = Field(True, description="mix prompts; if false, use the one prompt of the task that a query pass predicts")
    classifier: Literal["ridge", "aligned"] = Field(
        "ridge",
        validate_default=True,
        description="who answers: a ridge regression in closed form, or the paper's head, aligned with replayed features",
    )
    first_pass: Literal["prompted", "query"] = Field(
        "prompted",
        description="'query' has no prompt; else the first task's, or with classifier='aligned' all mixed equally",
    )
    projections: int = Field(
        5000, ge=1, description="classifier='ridge': random projections; a model's file grows with their square"
    )
    ridge_scale: float = Field(20.0, gt=0, description="classifier='ridge': logits are this times the regression")

    at_prediction: ClassVar[frozenset[str]] = PrefixOptions.at_prediction | {
        "cycles",
        "max_cycles",
        "settled",
        "sure",
        "ridge_scale",
    }

    retired: ClassVar[Mapping[str, Any]] = MappingProxyType({"patches": False})

    @field_validator("classifier")
    @classmethod
    def is_the_program_s(cls, value: str, info: ValidationInfo) -> str:
        """The released program is repeated whole: it has no regression."""
        if value == "ridge" and info.data.get("protocol") == "released":
            raise ValueError("protocol 'released' is the authors' program; it has classifier 'aligned' (see preset 'paper')")
        return value
