from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from caprompt.errors import OptionError
from caprompt.methods import get_method, list_methods
from caprompt.methods.options import Options, describe_options, validate_options


@given(st.text(min_size=1, max_size=12).filter(lambda name: name not in Options.model_fields))
def test_no_unknown_key_gets_through(name: str) -> None:
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
def test_bad_values_are_named_with_their_key(key: str, value: object) -> None:
    with pytest.raises(OptionError, match=f"option '{key}' of x cannot be"):
        validate_options(Options, {key: value}, owner="x")


def test_options_survive_json() -> None:
    for method in list_methods().values():
        options = method.options_class()
        assert method.options_class.model_validate(options.model_dump(mode="json")) == options


def test_every_option_of_every_method_says_what_it_means() -> None:
    for name in list_methods():
        for option, kind, _, meaning in describe_options(get_method(name).options_class):
            assert meaning, option
            assert kind
            assert "Ellipsis" not in kind


def test_options_cannot_be_changed_in_place() -> None:
    with pytest.raises(ValueError):
        Options().epochs = 3  # type: ignore[misc]
