"""Options of CAPrompt: which may change after learning, and what bad ones are answered with."""

from __future__ import annotations

import pytest

from caprompt import ContinualClassifier
from caprompt.errors import OptionError
from caprompt.methods.caprompt import CAPromptOptions


def test_what_only_concerns_prediction_may_change_on_a_trained_model() -> None:
    assert {"cycles", "max_cycles", "settled", "ridge_scale", "precision"} <= CAPromptOptions.at_prediction
    assert not {"classifier", "projections", "first_pass", "alpha"} & CAPromptOptions.at_prediction


@pytest.mark.parametrize(
    ("option", "value"),
    [("classifier", "knn"), ("ridge_scale", 0), ("projections", 0), ("cycles", 0), ("cycles", "often"), ("first_pass", "equal")],
)
def test_a_bad_value_is_named_with_its_option(option: str, value: object) -> None:
    with pytest.raises(OptionError, match=f"option '{option}'"):
        ContinualClassifier(**{option: value})  # type: ignore[arg-type]


def test_the_released_program_has_no_regression() -> None:
    with pytest.raises(OptionError, match="it has classifier 'aligned'"):
        ContinualClassifier(protocol="released")
    assert CAPromptOptions(protocol="released", classifier="aligned").protocol == "released"
