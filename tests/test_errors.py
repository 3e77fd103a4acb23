from __future__ import annotations

import pytest

from caprompt import errors


def test_exit_codes() -> None:
    assert errors.CapromptError.exit_code == 1
    input_errors = (errors.InputError, errors.DataError, errors.OptionError, errors.ModelFolderError, errors.UnknownNameError)
    assert {error.exit_code for error in input_errors} == {2}
    assert errors.StoppedError.exit_code == 130


def test_unknown_name_error_lists_known_names() -> None:
    error = errors.UnknownNameError("method", "l3p", ["l2p", "caprompt"], also="; or none")
    assert str(error) == "unknown method 'l3p' (did you mean 'l2p'?); there are: caprompt, l2p; or none"


def test_option_errors_know_the_option() -> None:
    error = errors.UnknownOptionError("epoch", "ncm", ["epochs"])
    assert error.option == "epoch"
    assert str(error) == "unknown option 'epoch' for ncm (did you mean 'epochs'?); there are: epochs"


def test_input_errors_are_value_errors() -> None:
    with pytest.raises(ValueError):
        raise errors.DataError("no")
