from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from caprompt.errors import OptionError
from caprompt.methods import get_method, list_methods
from caprompt.methods.options import Options, describe_options, validate_options


@given(st.text(min_size=1, max_size=12).filter(lambda name: name not in Options.model_fields))
def test_unknown_options_are_refused(name: str) -> None:
    with pytest.raises(OptionError, match="unknown option"):
        validate_options(Options, {name: 1}, owner="x")


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("epochs", 0),
        ("epochs", 2.5),
        ("flip", 2),
        ("schedule", "linear"),
        ("crop_scale", (1,)),
        ("crop_scale", (1.0, 0.3)),
        ("crop_scale", (0.0, 1.0)),
        ("learning_rate", float("inf")),
        ("batch_size", -1),
        ("clip", "much"),
    ],
)
def test_invalid_values_are_reported_with_their_option(key: str, value: object) -> None:
    with pytest.raises(OptionError, match=f"option '{key}' of x cannot be"):
        validate_options(Options, {key: value}, owner="x")


def test_options_round_trip_through_json() -> None:
    for method in list_methods().values():
        options = method.options_class()
        assert method.options_class.model_validate(options.model_dump(mode="json")) == options


def test_every_option_of_every_method_has_a_description() -> None:
    for name in list_methods():
        for option, kind, _, description in describe_options(get_method(name).options_class):
            assert description, option
            assert kind
            assert "Ellipsis" not in kind


def test_options_are_immutable() -> None:
    with pytest.raises(ValueError):
        Options().epochs = 3  # type: ignore[misc]


def test_defaults_are_those_that_the_published_results_were_measured_with() -> None:
    """Another default is another method: results, README and docs must be measured again with it."""
    common = {"epochs": 5, "batch_size": 24, "learning_rate": 3e-3, "head_rate": 1.0, "optimizer": "adam", "clip": 1.0}
    common |= {"schedule": "cosine", "crop_scale": (0.3, 1.0), "flip": 0.5, "brightness": 0.0, "test_crop": 0.875}
    assert {name: getattr(Options(), name) for name in common} == common
    own = {"epochs": "auto", "batch_size": "auto", "learning_rate": "auto", "training_prompt": "own", "alpha": 0.0, "beta": 0.0}
    own |= {"modulation": 0.1, "cycles": 2, "length": 10, "classifier": "ridge", "projections": 10_000, "ridge_strength": "auto"}
    own |= {"training_head": "cosine", "readout_blocks": "auto", "mirror": True}
    defaults = get_method("caprompt").options_class()
    assert {name: getattr(defaults, name) for name in own} == own


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"crop_scale": (1.0, 0.3)}, r"option 'crop_scale' of x cannot be '\(1.0, 0.3\)': needs 0 < smallest <= largest <= 1"),
        ({"epochs": "lots"}, "option 'epochs' of x cannot be 'lots': it should be a valid integer or 'auto'"),
        ({"flip": 2}, "option 'flip' of x cannot be '2': it should be less than or equal to 1"),
    ],
)
def test_messages_are_sentences(values: dict[str, object], message: str) -> None:
    with pytest.raises(OptionError, match=f"^{message}$"):
        validate_options(Options, values, owner="x")


@pytest.mark.parametrize(
    ("method", "key", "value"),
    [
        ("caprompt", "learning_rate", 1e300),
        ("caprompt", "projections", 10**12),
        ("caprompt", "test_crop", 1e-6),
        ("caprompt", "epochs", 10**30),
        ("caprompt", "length", 10**9),
        ("coda-prompt", "length", 10**9),
        ("ranpac", "projections", 10**12),
        ("ncm", "scale", 1e300),
    ],
)
def test_values_that_no_computation_survives_are_refused(method: str, key: str, value: float) -> None:
    with pytest.raises(OptionError, match=f"option '{key}' of {method} cannot be '.*': it should be (at most|greater than)"):
        validate_options(get_method(method).options_class, {key: value}, owner=method)


def test_message_about_a_long_value_is_one_short_line() -> None:
    with pytest.raises(OptionError) as error:
        validate_options(Options, {"learning_rate": "two\nlines" * 1000}, owner="x")
    assert len(str(error.value).splitlines()) == 1
    assert len(str(error.value)) < 200
