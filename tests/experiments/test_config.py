from __future__ import annotations

import pytest

from caprompt.errors import OptionError
from caprompt.experiments.config import build_run_config, split_settings


def test_flat_settings_become_a_run_config() -> None:
    config = build_run_config({"dataset": "digits", "tasks": [1, 4], "epochs": 3, "cycles": 1})
    assert config.tasks == (1, 4)
    assert config.options == {"epochs": 3, "cycles": 1}
    with pytest.raises(OptionError, match="unknown option 'cycles' for sequential-prompt"):
        build_run_config({"method": "sequential-prompt", "cycles": 1})
    with pytest.raises(OptionError, match="'validation' of run cannot be '2'"):
        build_run_config({"validation": 2})


def test_protocol_released_exists_for_some_methods_only() -> None:
    assert build_run_config({"method": "sequential-prompt", "protocol": "honest"}).options == {}
    with pytest.raises(OptionError, match="sequential-prompt is always honest; protocol 'released' exists for: caprompt"):
        build_run_config({"method": "sequential-prompt", "protocol": "released"})
    with pytest.raises(OptionError, match="option 'protocol' of caprompt cannot be 'lax'"):
        build_run_config({"protocol": "lax"})


def test_unknown_setting_lists_settings_and_options() -> None:
    with pytest.raises(OptionError, match=r"unknown option 'sed' for x \(did you mean 'seed'\?\); there are: alpha, seed"):
        split_settings({"sed": 1}, ["seed"], ["alpha"], "x")
