from __future__ import annotations

import pytest

from caprompt import errors


def test_bad_input_exits_2_and_failures_1() -> None:
    assert errors.CapromptError.exit_code == 1
    children = (errors.InputError, errors.DataError, errors.OptionError, errors.ModelFolderError, errors.UnknownNameError)
    assert {child.exit_code for child in children} == {2}


def test_unknown_names_list_what_exists() -> None:
    error = errors.UnknownNameError("method", "l3p", ["l2p", "caprompt"], also="; or none")
    assert str(error) == "unknown method 'l3p' (did you mean 'l2p'?); there are: caprompt, l2p; or none"


def test_they_can_be_caught_as_value_errors() -> None:
    with pytest.raises(ValueError):
        raise errors.DataError("no")
