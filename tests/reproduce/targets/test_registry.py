from __future__ import annotations

import pytest

from caprompt.errors import UnknownNameError
from caprompt.methods import get_method
from caprompt.reproduce.targets.registry import TARGETS, select_targets

NAMES = ["table1", "table2", "table3", "ablation", "table-taskid", "table-backbones"]
NAMES += ["fig-curve", "fig-cycles", "fig-tsne", "fig-params", "fig-hyper", "theorem", "comparison", "orders"]


def test_names_and_order_of_targets() -> None:
    assert list(TARGETS) == NAMES
    assert [target.name for target in select_targets(("all",))] == NAMES


def test_rows_can_be_run() -> None:
    for target in TARGETS.values():
        labels = [row.label for row in target.rows]
        assert len(labels) == len(set(labels))
        for row in target.rows:
            assert row.options.keys() <= {*get_method(row.method).options_class.model_fields, "joint"}


def test_unknown_targets_are_refused_with_a_hint() -> None:
    with pytest.raises(UnknownNameError, match=r"unknown target 'tabel1' \(did you mean 'table1'\?\); there are: ablation, all"):
        select_targets(("table2", "tabel1"))
    assert [target.name for target in select_targets(("table2", "table2"))] == ["table2"]
