"""CAPrompt's options: which go together, and what defaults they have."""

from __future__ import annotations

from dataclasses import replace

import pytest
from helpers import TINY, tiny_vit

from caprompt import ContinualClassifier
from caprompt.errors import OptionError
from caprompt.methods.caprompt import CAPrompt, CAPromptOptions
from caprompt.methods.components.effort import Effort


def test_papers_classifier_comes_with_the_papers_recipe() -> None:
    expected = {
        "epochs": 5,
        "batch_size": 24,
        "learning_rate": 0.01,
        "training_prompt": "mixture",
        "training_head": "linear",
        "alpha": 5.0,
        "beta": 0.2,
        "modulation": 0.0,
    }
    options = CAPromptOptions(classifier="aligned")
    assert {name: getattr(options, name) for name in expected} == expected
    with_others = CAPromptOptions(classifier="aligned", epochs=7, alpha=1.0, modulation=0.3)
    assert (with_others.epochs, with_others.alpha, with_others.modulation) == (7, 1.0, 0.3)
    assert (with_others.beta, with_others.training_prompt) == (0.2, "mixture")


def test_papers_classifier_can_train_a_tasks_own_prompt() -> None:
    """Then the constraints, which nobody asked for, are off."""
    options = CAPromptOptions(classifier="aligned", training_prompt="own")
    assert (options.training_prompt, options.training_head) == ("own", "linear")
    assert (options.alpha, options.beta, options.epochs) == (0.0, 0.0, 5)


@pytest.mark.parametrize("option", ["alpha", "beta"])
def test_constraints_need_the_mixture_and_a_linear_head(option: str) -> None:
    for other in (
        {"training_prompt": "own"},
        {"training_head": "cosine"},
        {"classifier": "aligned", "training_prompt": "own"},
    ):
        with pytest.raises(OptionError, match=f"option '{option}' of caprompt cannot be '0.5': .*needs training_prompt=mixture"):
            ContinualClassifier(**{option: 0.5}, **other)  # type: ignore[arg-type]
    for other in ({}, {"training_prompt": "mixture"}, {"classifier": "aligned"}):  # a constraint alone asks for what it needs
        options = CAPromptOptions(**{option: 0.5}, **other)  # type: ignore[arg-type]
        assert (options.training_prompt, options.training_head, getattr(options, option)) == ("mixture", "linear", 0.5)
    assert CAPromptOptions(**{option: 0.0}).training_prompt == "own"  # type: ignore[arg-type]


def test_papers_classifier_has_no_cosine_head() -> None:
    with pytest.raises(OptionError, match="leave out training_head"):
        ContinualClassifier(classifier="aligned", training_head="cosine", alpha=0, beta=0)


def test_models_saved_before_the_options_existed_keep_their_behavior() -> None:
    """They have all options of their time, among them alpha and beta."""
    added = {"training_prompt", "training_head", "modulation", "ridge_strength"}
    saved = {name: value for name, value in CAPromptOptions().model_dump().items() if name not in added}
    saved |= {"epochs": 5, "batch_size": 24, "learning_rate": 0.01, "alpha": 5.0, "beta": 0.2}
    options = CAPromptOptions.model_validate(CAPromptOptions.complete_saved(saved))
    assert (options.training_prompt, options.training_head) == ("mixture", "linear")
    assert (options.modulation, options.ridge_strength) == (0.0, "held-out")
    assert (options.epochs, options.alpha, options.beta) == (5, 5.0, 0.2)
    current = CAPromptOptions()
    assert CAPromptOptions.model_validate(CAPromptOptions.complete_saved(current.model_dump())) == current


@pytest.mark.parametrize(("width", "rate"), [(192, 0.02), (384, 0.01), (768, 0.005)])
def test_wider_backbones_have_smaller_learning_rates(width: int, rate: float) -> None:
    vit = tiny_vit(config=replace(TINY, width=width))
    method = CAPrompt(vit, CAPromptOptions(projections=10))
    method.choose_effort(280, 2)
    assert method.effort == Effort(20, 16, pytest.approx(rate), chosen=True)
    assert method.epochs == 20
    assert CAPrompt(vit, CAPromptOptions(projections=10, learning_rate=0.3)).effort.learning_rate == 0.3


def test_options_that_affect_only_prediction_can_change_on_a_trained_model() -> None:
    assert {"cycles", "max_cycles", "settled", "ridge_scale", "precision"} <= CAPromptOptions.at_prediction
    assert not {"classifier", "projections", "first_pass", "alpha"} & CAPromptOptions.at_prediction


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("classifier", "knn"),
        ("ridge_scale", 0),
        ("ridge_strength", 0),
        ("ridge_strength", "best"),
        ("projections", 0),
        ("cycles", 0),
        ("cycles", "often"),
        ("first_pass", "equal"),
        ("training_prompt", "all"),
        ("modulation", -1),
        ("epochs", "many"),
    ],
)
def test_invalid_values_are_reported_with_their_option(option: str, value: object) -> None:
    with pytest.raises(OptionError, match=f"option '{option}'"):
        ContinualClassifier(**{option: value})  # type: ignore[arg-type]


def test_released_protocol_requires_the_aligned_classifier() -> None:
    with pytest.raises(OptionError, match="only classifier 'aligned'"):
        ContinualClassifier(protocol="released")
    assert CAPromptOptions(protocol="released", classifier="aligned").protocol == "released"
