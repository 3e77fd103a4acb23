from __future__ import annotations

import pytest
from helpers import ROOT

from caprompt.methods import list_methods
from caprompt.reproduce.published import get_published, is_leaking, load_published
from caprompt.reproduce.targets.accuracy_tables import OWN
from caprompt.reproduce.targets.registry import TARGETS

PAPER = next((path for place in (ROOT, ROOT.parent) if (path := place / "shared" / "paper.tex").is_file()), None)
TABLES = ("table1", "table2", "table3", "table-taskid", "table-backbones")


def flat(tables: dict[str, dict[str, object]]) -> dict[tuple[str, ...], list[float]]:
    """Return every value by its path."""
    values: dict[tuple[str, ...], list[float]] = {}

    def walk(value: object, path: tuple[str, ...]) -> None:
        if isinstance(value, dict):
            for key, inner in value.items():
                walk(inner, (*path, key))
        elif isinstance(value, list):
            values[path] = value

    walk({name: tables[name] for name in TABLES}, ())
    return values


@pytest.mark.skipif(PAPER is None, reason="the paper's source (../shared/paper.tex) is not at hand")
def test_every_value_is_that_of_the_paper() -> None:
    from reproduce.paper_tables import parse_tables

    assert PAPER is not None
    theirs = {
        (table, *([block] if block else []), row, dataset, metric): [float(value) for value in values]
        for (table, block, row), cells in parse_tables(PAPER.read_text(encoding="utf-8")).items()
        for (dataset, metric), values in cells.items()
    }
    ours = flat(load_published())
    assert ours.keys() == theirs.keys()
    assert {key: value for key, value in ours.items() if value != theirs[key]} == {}
    assert len(ours) == 48 + 24 + 10 + 6 + 96


def test_every_row_of_the_papers_tables_is_a_row_of_its_target() -> None:
    for name in TABLES:
        target = TARGETS[name]
        for title, backbone in target.backbones.items():
            block = title if backbone else ""
            for row in (row for row in target.rows if row is not OWN):
                values = [get_published(name, row.label, dataset, "ACC", block) for dataset in target.datasets]
                assert all(values) or (title == "own" and not any(values)), (name, row.label)


def test_leaking_methods() -> None:
    assert {method for method in list_methods() if is_leaking(method)} == {"l2p", "dualprompt", "hide-prompt", "caprompt"}
