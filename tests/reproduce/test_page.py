from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from grids import pretended
from helpers import tree

from caprompt.errors import ModelFolderError
from caprompt.protocols import HONEST
from caprompt.reproduce.page import benchmark_section, few_section, read_benchmark, references, reproduced_section, reproductions
from caprompt.reproduce.writers import write


def a_run(row: str, order: str, protocol: str, accuracy: float, **settings: Any) -> dict[str, Any]:
    return {
        "row": row,
        "order": order,
        "summary": {"ACC": accuracy, "AF": 5.0, "task_identification": 70.0},
        "after": [90.0, 88.0, 86.0, 84.0, 82.0, accuracy + 10, accuracy],
        "training_seconds": 100.4,
        "wall_seconds": 120.0,
        "protocol": protocol,
        "date": "2026-01-02",
        "settings": {"epochs": 8, "validation": 0.0, **settings},
        "backbone": {"name": "deit", "sha256": "ab" * 32},
        "environment": {"device": "cuda: X", "torch": "2", "python": "3", "caprompt": "0"},
        "peak_memory_gb": 3.25,
    }


RUNS = [
    a_run("paper, as released", "natural", "released: leaks", 70.0),
    a_run("paper", "natural", HONEST, 50.0),
    a_run("paper", "1", HONEST, 53.0),
    a_run("paper", "1", HONEST, 60.0, test_crop=1.0),
]


def test_honest_and_leaking_figures_have_tables_of_their_own() -> None:
    text = benchmark_section(RUNS, "picture.png")
    honest, _, rest = text.partition("### Figures of the protocol RELEASED")
    leaking, _, _ = rest.partition("### Upper bound")
    assert "| paper | natural | 8 | 60.0 | 50.0 | 5.0 | 70.0 | 100 s | 120 s | 3.2 GB |" in honest
    assert "| paper, mean | 2 orders | 8 | 61.5 ± 2.1 | 51.5 ± 2.1 |" in honest
    assert "| paper, test_crop=1.0 | 1 | 8 | 70.0 |" in honest
    assert "as released" not in honest
    assert "69.7" in honest
    assert "78.1" not in honest
    assert "LEAKS" in leaking
    assert "78.1" in leaking
    assert "| paper, as released | natural | 8 | 80.0 | 70.0 |" in leaking
    for words in ("(picture.png)", "cuda: X", "2026-01-02", "abababababab", "python benchmarks/cifar100.py"):
        assert words in text


def test_runs_on_validation_images_are_no_results(tmp_path: Path) -> None:
    chosen = a_run("default", "1", HONEST, 99.0, validation=0.1)
    (tmp_path / "cifar100.json").write_text(json.dumps([*RUNS, chosen]))
    assert read_benchmark(tmp_path / "cifar100.json") == RUNS


@pytest.mark.parametrize("content", ["{", "[]", '[{"row": "paper"}]', '{"a": 1}'])
def test_another_file_is_refused(content: str, tmp_path: Path) -> None:
    (tmp_path / "cifar100.json").write_text(content)
    with pytest.raises(ModelFolderError, match="does not hold the CIFAR-100 benchmark; write it with"):
        read_benchmark(tmp_path / "cifar100.json")


def test_references_say_what_they_are() -> None:
    figures = {each["what"].partition(":")[2] or each["what"]: (each["protocol"], each["accuracy"]) for each in references()}
    assert figures["the authors' program, as released"] == ("released", [78.1])
    assert figures["the authors' program, axes put right"] == ("honest", [69.7])


def test_reproduced_targets_are_told_from_their_cells(tmp_path: Path) -> None:
    home = tmp_path / "docs" / "reproduced"
    for name in ("table3", "theorem"):
        evidence = pretended(name, home / "cells")
        write(evidence, evidence.target.present(evidence), home / "tiny" / name)
    before = tree(tmp_path)
    sections = [reproduced_section(place, evidence, tmp_path / "docs") for place, evidence in reproductions(home)]
    assert tree(tmp_path) == before
    assert [text.splitlines()[0][:10] for text in sections] == ["## Table 3", "## Theorem"]
    assert "(reproduced/tiny/table3/table3.svg)" in sections[0]
    assert reproductions(tmp_path / "nowhere") == []


def test_few_images_have_a_column_for_each_order_that_was_run(tmp_path: Path) -> None:
    where = {"device": "cuda: X", "torch": "2", "python": "3", "caprompt": "0"}
    found = {"images_per_class": 7, "backbone": "deit", "date": "2026-01-02", "environment": where}
    path = tmp_path / "few.json"
    path.write_text(json.dumps({**found, "rows": {"one": {"0": 50.125, "10": 49.0}, "two": {"2": 40.0}}}))
    text = few_section(path)
    assert "## CIFAR-100, 7 images of each class" in text
    assert "| ACC in percent | order 0 | order 2 | order 10 |" in text
    assert "| one | 50.12 | not run | 49.00 |" in text
    assert "| two | not run | 40.00 | not run |" in text
    assert "cuda: X" in text
    path.write_text(json.dumps(found))
    with pytest.raises(ModelFolderError, match="does not hold figures of few images"):
        few_section(path)
