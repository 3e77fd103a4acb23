"""The page of results in docs/ says what was measured, and nothing else."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from grids import pretended
from helpers import assert_refused, caprompt_here

from caprompt.publishing import results_page
from caprompt.reproduce.outputs import write
from caprompt.reproduce.page import references
from caprompt.reproduce.published import printed

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "results.md"
BENCHMARK = ROOT / "benchmarks" / "results" / "cifar100.json"
FROZEN = ROOT / "benchmarks" / "results" / "frozen.json"
FEW = ROOT / "benchmarks" / "results" / "few.json"
REPRODUCED = ROOT / "docs" / "reproduced"


def numbers_in(value: Any) -> set[float]:
    """Every number of a JSON document."""
    if isinstance(value, dict):
        return {number for inner in value.values() for number in numbers_in(inner)}
    if isinstance(value, list):
        return {number for inner in value for number in numbers_in(inner)}
    return {float(value)} if isinstance(value, int | float) and not isinstance(value, bool) else set()


def means(groups: dict[Any, list[dict[str, Any]]]) -> set[float]:
    """Mean and spread of every figure over the runs of a group, computed anew."""
    found = set()
    for runs in groups.values():
        series = [[run["after"][5] for run in runs if len(run["after"]) > 5]]
        series += [[run["summary"][name] for run in runs] for name in runs[0]["summary"]]
        found |= {fmean(values) for values in series if values} | {stdev(values) for values in series if len(values) > 1}
    return found


def over_seeds(folders: list[Path]) -> set[float]:
    """Mean and spread over some cells of every number they hold, of the mean of every row and of the diagonal of their matrices."""
    series: dict[str, list[float]] = {}

    def walk(value: Any, path: str) -> None:
        if isinstance(value, dict | list):
            for key, inner in value.items() if isinstance(value, dict) else enumerate(value):
                walk(inner, f"{path}/{key}")
            if isinstance(value, list) and value and all(isinstance(inner, float) for inner in value):
                series.setdefault(f"{path}/mean", []).append(fmean(value))
        elif isinstance(value, int | float):
            series.setdefault(path, []).append(float(value))

    for folder in folders:
        for path in sorted(folder.glob("*.json")):
            walk(json.loads(path.read_text()), path.name)
    for name in ("numbers", "bytes_per_class"):  # shown in thousands
        series[f"{name} in thousands"] = [number / 1e3 for number in series.get(f"costs.json/{name}", [])]
    for folder in folders:
        matrix = [row["accuracies"] for row in json.loads((folder / "results.json").read_text())["rows"]]
        learned = [value for before, row in zip([[], *matrix], matrix, strict=False) for value in row[len(before) :]]
        series.setdefault("when learned", []).append(fmean(learned))
    series = {name: values for name, values in series.items() if values}
    return {fmean(values) for values in series.values()} | {stdev(values) for values in series.values() if len(values) > 1}


def allowed(benchmark: Path, reproduced: Path) -> set[str]:
    """Every number that the page may show, as it may show it."""
    runs = json.loads(benchmark.read_text())
    groups: dict[Any, list[dict[str, Any]]] = {}
    for run in runs:
        groups.setdefault((run["row"], json.dumps(run["settings"])), []).append(run)
    others = [benchmark.with_name(path.name) for path in (FROZEN, FEW)]
    known = {number for path in others if path.is_file() for number in numbers_in(json.loads(path.read_text()))}
    known |= numbers_in(runs) | means(groups) | numbers_in(references()) | numbers_in(printed())
    for record in reproduced.glob("*/*/*.json"):
        if record.stem == record.parent.name:
            for *_, names in json.loads(record.read_text())["planned"]:
                cells = [reproduced / "cells" / name for name in names] if isinstance(names, list) else []
                run = [cell for cell in cells if cell.is_dir()]
                known = known.union(over_seeds(run), *(over_seeds([cell]) for cell in run))
    return {f"{number:.{digits}f}" for number in known for digits in (0, 1, 2, 3, 5)}


def figures_of(text: str) -> list[str]:
    """The numbers in the cells of a page's tables that have a decimal point.

    Two targets show what follows from measured numbers in another way than by a mean; their own tests check that.
    """
    sections = [part for part in text.split("\n## ") if "straightness" not in part and "trained parameters" not in part]
    rows = [line for part in sections for line in part.splitlines() if line.startswith("|")]
    return [number for row in rows for number in re.findall(r"(?<![\w=.-])-?\d+\.\d+", row)]


def test_the_page_is_what_the_files_say() -> None:
    assert results_page(BENCHMARK, FROZEN, FEW, REPRODUCED, PAGE) == PAGE.read_text(encoding="utf-8"), (
        "write it anew with `caprompt results`"
    )


def test_every_number_on_the_page_was_measured() -> None:
    figures, known = figures_of(PAGE.read_text(encoding="utf-8")), allowed(BENCHMARK, REPRODUCED)
    assert len(figures) > 20
    assert [figure for figure in figures if figure not in known] == []


def test_a_number_that_was_not_measured_is_found(tmp_path: Path) -> None:
    text = PAGE.read_text(encoding="utf-8")
    first = figures_of(text)[0]
    forged = text.replace(f"| {first} |", "| 99.9 |", 1)
    known = allowed(BENCHMARK, REPRODUCED)
    assert forged != text
    assert "99.9" in [figure for figure in figures_of(forged) if figure not in known]


def test_the_command_writes_the_page(tmp_path: Path) -> None:
    place = tmp_path / "benchmarks" / "results"
    place.mkdir(parents=True)
    for measured in (BENCHMARK, FROZEN, FEW):
        shutil.copy(measured, place)
    evidence = pretended("table3", tmp_path / "docs" / "reproduced" / "cells")
    write(evidence, evidence.target.present(evidence), tmp_path / "docs" / "reproduced" / "tiny" / "table3")
    done = caprompt_here("results", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "saved in docs/results.md" in done.stdout
    text = (tmp_path / "docs" / "results.md").read_text()
    assert text.startswith(PAGE.read_text(encoding="utf-8").split("## CIFAR-100")[0])
    assert "| + Aggregation | ours | honest |" in text
    known = allowed(BENCHMARK, tmp_path / "docs" / "reproduced")
    assert [figure for figure in figures_of(text) if figure not in known] == []
    (tmp_path / "docs" / "reproduced" / "tiny" / "table3" / "table3.json").unlink()
    assert [figure for figure in figures_of(text) if figure not in allowed(BENCHMARK, tmp_path / "docs" / "reproduced")]
    assert "(reproduced/tiny/table3/table3.svg)" in text


def test_nothing_to_tell_of(tmp_path: Path) -> None:
    assert_refused(tmp_path, ["results"], "there is nothing to tell of", caprompt_here)
    (tmp_path / "broken.json").write_text("{")
    words = ["results", "--benchmark", "broken.json"]
    assert_refused(tmp_path, words, "does not hold the CIFAR-100 benchmark", caprompt_here)
    words = ["results", "--frozen", "broken.json"]
    assert_refused(tmp_path, words, "does not hold figures of frozen features", caprompt_here)
