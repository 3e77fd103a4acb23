"""docs/results.md shows the measurements in results/, and nothing else."""

from __future__ import annotations

import importlib.util
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from statistics import fmean, stdev
from types import ModuleType
from typing import Any

import pytest
from grids import make_fake_evidence
from helpers import ROOT, read_tree

from caprompt.errors import InputError, ModelFolderError
from caprompt.protocols import HONEST
from caprompt.reproduce.published import load_published
from caprompt.reproduce.targets.registry import TARGETS
from caprompt.reproduce.writers import write_target

TOOL, RESULTS, PAGE = ROOT / "tools" / "results_page.py", ROOT / "results", ROOT / "docs" / "results.md"


def load_tool() -> ModuleType:
    spec = importlib.util.spec_from_file_location("results_page", TOOL)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


tool = load_tool()


# -- numbers on the page against the numbers in the files, without the code that writes the page -------------------------------


def collect_numbers(value: Any) -> set[float]:
    """Return every number of a JSON document."""
    if isinstance(value, dict):
        return {number for inner in value.values() for number in collect_numbers(inner)}
    if isinstance(value, list):
        return {number for inner in value for number in collect_numbers(inner)}
    return {float(value)} if isinstance(value, int | float) and not isinstance(value, bool) else set()


def compute_means(groups: dict[Any, list[dict[str, Any]]]) -> set[float]:
    """Return mean and standard deviation of every metric over the runs of each group."""
    values = set()
    for runs in groups.values():
        series = [[run["after"][5] for run in runs if len(run["after"]) > 5]]
        series += [[run["summary"][name] for run in runs] for name in runs[0]["summary"]]
        values |= {fmean(each) for each in series if each} | {stdev(each) for each in series if len(each) > 1}
    return values


def compute_over_seeds(cells: list[dict[str, Any]]) -> set[float]:
    """Return mean and standard deviation over cells of every number, row mean and diagonal mean of their accuracy matrices."""
    series: dict[str, list[float]] = {}

    def walk(value: Any, path: str) -> None:
        if isinstance(value, dict | list):
            for key, inner in value.items() if isinstance(value, dict) else enumerate(value):
                walk(inner, f"{path}/{key}")
            if isinstance(value, list) and value and all(isinstance(inner, float) for inner in value):
                series.setdefault(f"{path}/mean", []).append(fmean(value))
        elif isinstance(value, int | float):
            series.setdefault(path, []).append(float(value))

    for files in cells:
        for name, document in files.items():
            walk(document, name)
    for name in ("numbers", "bytes_per_class"):  # shown in thousands
        series[f"{name} in thousands"] = [number / 1e3 for number in series.get(f"costs.json/{name}", [])]
    for files in cells:
        matrix = [row["accuracies"] for row in files["results.json"]["rows"]]
        learned = [value for before, row in zip([[], *matrix], matrix, strict=False) for value in row[len(before) :]]
        series.setdefault("when learned", []).append(fmean(learned))
    series = {name: values for name, values in series.items() if values}
    return {fmean(values) for values in series.values()} | {stdev(values) for values in series.values() if len(values) > 1}


def format_numbers(numbers: set[float]) -> set[str]:
    """Return numbers as the page may show them."""
    return {f"{number:.{digits}f}" for number in numbers for digits in (0, 1, 2, 3, 5)}


def collect_benchmark_numbers(results: Path) -> set[float]:
    """Return every number of the accuracy benchmarks, their means, and those of other code."""
    runs = json.loads((results / "accuracy" / "cifar100.json").read_text())
    groups: dict[Any, list[dict[str, Any]]] = {}
    for run in runs:
        groups.setdefault((run["row"], json.dumps(run["settings"])), []).append(run)
    compared: dict[Any, list[dict[str, Any]]] = {}
    for line in read_jsonl(results / "accuracy" / "comparison.jsonl"):
        place = [line["cell"][name] for name in ("dataset", "backbone", "per_class", "label")]
        compared.setdefault(json.dumps(place), []).append({name: line[name] for name in ("ACC", "forgetting") if name in line})
    series = [[run[name] for run in own] for own in compared.values() for name in own[0]]
    over_orders = {fmean(each) for each in series} | {stdev(each) for each in series if len(each) > 1}
    over_orders |= collect_numbers(list(compared.values()))
    others = [results / "accuracy" / f"{name}.json" for name in ("frozen", "few")]
    known = {number for path in others for number in collect_numbers(json.loads(path.read_text()))}
    return known | over_orders | collect_numbers(runs) | compute_means(groups) | collect_numbers(tool.read_references(results))


def read_jsonl(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def collect_row_numbers(results: Path) -> dict[str, dict[str, set[float]]]:
    """Return every number of a row's cells and their means, by title of the table and label of the row."""
    tables: dict[str, dict[str, set[float]]] = {}
    speeds = results / "speed" / "speeds.json"
    speed_rows = json.loads(speeds.read_text())["rows"] if speeds.is_file() else {}
    cells = {line["cell"]: line["files"] for line in read_jsonl(results / "runs.jsonl")}
    for record in read_jsonl(results / "targets.jsonl"):
        rows = tables.setdefault(TARGETS[record["target"]].title, {})
        for label, _, _, names in record["planned"]:
            own = [cells[name] for name in names if name in cells] if isinstance(names, list) else []
            known = rows.setdefault(label, collect_numbers(speed_rows.get(label, {})))
            known.update(compute_over_seeds(own), *(compute_over_seeds([cell]) for cell in own))
    return tables


def find_unmeasured(text: str, results: Path) -> list[str]:
    """Return the numbers with a decimal point in a page's tables that are not measurements of their row.

    Two targets show what follows from measurements in another way than by a mean; their own tests check that.
    """
    elsewhere, tables, wrong = format_numbers(collect_benchmark_numbers(results)), collect_row_numbers(results), []
    for part in text.split("\n## "):
        rows = {label: format_numbers(known) for label, known in tables.get(part.partition("\n")[0], {}).items()}
        if "straightness" in part or "trained parameters" in part:
            continue
        for line in part.splitlines():
            entries = [entry.strip() for entry in line.strip("|").split("|")]
            if line.startswith("|") and "published" in entries:
                known = format_numbers(collect_numbers(load_published()))
            else:
                known = next((rows[entry] for entry in entries[:2] if entry in rows), elsewhere)
            wrong += [number for number in find_numbers(line) if number not in known]
    return wrong


def find_numbers(line: str) -> list[str]:
    """Return the numbers in a table's line that have a decimal point."""
    return re.findall(r"(?<![\w=.-])-?\d+\.\d+", line) if line.startswith("|") else []


def test_the_page_is_that_of_the_files() -> None:
    assert tool.build_page(RESULTS) == PAGE.read_text(encoding="utf-8"), "write it again with `make results`"


def test_every_number_on_the_page_was_measured() -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert sum(len(find_numbers(line)) for line in text.splitlines()) > 500
    assert find_unmeasured(text, RESULTS) == []


def test_a_number_that_is_not_of_its_row_is_found() -> None:
    """Increase the first accuracy of every line of some rows a little."""
    text, forged = PAGE.read_text(encoding="utf-8"), 0
    for part in text.split("\n## "):
        for line in part.splitlines():
            own = re.search(r"\| (CAPrompt with ridge|RanPAC|L2P) \| ours \|", line)
            number = next((number for number in find_numbers(line) if float(number) > 30), None)
            if own and number and "trained parameters" not in part:
                better = f"{float(number) + 0.37:.{len(number.partition('.')[2])}f}"
                text = text.replace(line, line.replace(f"| {number} ", f"| {better} ", 1))
                forged += 1
    assert forged > 8
    assert len(find_unmeasured(text, RESULTS)) == forged


def test_the_page_shows_exactly_the_images_beside_it() -> None:
    shown = set(re.findall(r"\]\((images/[^)]+)\)", PAGE.read_text(encoding="utf-8")))
    assert len(shown) > 10
    assert shown == {path.relative_to(PAGE.parent).as_posix() for path in (PAGE.parent / "images" / "results").rglob("*.*")}


# -- provenance ------------------------------------------------------------------------------------------------------------------


def test_every_measurement_states_its_provenance() -> None:
    lines = read_jsonl(RESULTS / "runs.jsonl")
    assert [line["cell"] for line in lines] == sorted({line["cell"] for line in lines})
    documents = [json.loads(path.read_text()) for part in ("accuracy", "speed") for path in (RESULTS / part).glob("*.json")]
    compared = read_jsonl(RESULTS / "accuracy" / "comparison.jsonl")
    for line in [
        *lines,
        *compared,
        *(each for document in documents for each in (document if isinstance(document, list) else [document])),
    ]:
        assert re.fullmatch(r"[0-9a-f]{40}(-dirty)?", line["commit"])
        assert re.match(r"\d{4}-\d\d-\d\d", line["date"])
        assert {"environment", "data_sha256"} <= line.keys()
    for line in lines:
        assert line["environment"].keys() >= {"device", "torch", "python"}
        assert all(re.fullmatch("[0-9a-f]{64}", line["data_sha256"][part]) for part in ("train", "test"))


def test_every_file_is_described_with_its_command() -> None:
    text = (RESULTS / "README.md").read_text(encoding="utf-8")
    for path in RESULTS.rglob("*.*"):
        if path.name != "README.md":
            assert f"| `{path.relative_to(RESULTS).as_posix()}` |" in text, path.name


# -- collecting and unpacking ----------------------------------------------------------------------------------------------------


def write_reproduction(directory: Path, *targets: str) -> None:
    """Write fake cells, outputs and records as `caprompt reproduce --out` does."""
    for name in targets:
        evidence = make_fake_evidence(name, directory / "cells")
        write_target(evidence, evidence.target.present(evidence), directory / "tiny" / name)


def test_results_can_be_collected_and_unpacked(tmp_path: Path) -> None:
    write_reproduction(tmp_path / "reproduced", "table3", "theorem")
    cells = sorted(path for path in (tmp_path / "reproduced" / "cells").iterdir())
    provenance = {"commit": "c" * 40, "date": "2026-01-02T03:04:05+00:00"}
    (cells[0] / "provenance.json").write_text(json.dumps(provenance))
    (tmp_path / "reproduced" / "cells" / "unfinished").mkdir()
    assert tool.collect_results(tmp_path / "reproduced", tmp_path / "results") == len(cells)
    lines = read_jsonl(tmp_path / "results" / "runs.jsonl")
    assert [line["cell"] for line in lines] == [path.name for path in cells]
    assert {key: lines[0][key] for key in provenance} == provenance
    assert (lines[1]["commit"], lines[1]["date"]) == (None, None)
    tool.unpack_results(tmp_path / "results", tmp_path / "unpacked")
    for path in cells:
        for file in path.glob("*.json"):
            assert json.loads((tmp_path / "unpacked" / "cells" / path.name / file.name).read_text()) == json.loads(file.read_text())
    before, after = (tool.list_reproductions(tmp_path / name) for name in ("reproduced", "unpacked"))
    assert [name for name, _ in after] == ["tiny/table3", "tiny/theorem"]
    for (_, old), (_, new) in zip(before, after, strict=True):
        assert old.target.present(old).table == new.target.present(new).table


def test_collecting_again_changes_nothing_and_new_results_replace_old_ones(tmp_path: Path) -> None:
    reproduced, results = tmp_path / "reproduced", tmp_path / "results"
    write_reproduction(reproduced, "table3")
    cell = min(path for path in (reproduced / "cells").iterdir())
    (cell / "provenance.json").write_text(json.dumps({"commit": "c" * 40, "date": "2026-01-02"}))
    tool.collect_results(reproduced, results)
    before = read_tree(results)
    tool.collect_results(reproduced, results)
    assert read_tree(results) == before
    (cell / "provenance.json").unlink()  # the results are still those of that commit
    tool.collect_results(reproduced, results)
    assert read_tree(results) == before
    document = json.loads((cell / "results.json").read_text())
    (cell / "results.json").write_text(json.dumps({**document, "protocol": "changed"}))
    tool.collect_results(reproduced, results)
    lines = {line["cell"]: line for line in read_jsonl(results / "runs.jsonl")}
    assert lines[cell.name]["files"]["results.json"]["protocol"] == "changed"
    assert lines[cell.name]["commit"] is None


def test_targets_of_several_directories_are_merged(tmp_path: Path) -> None:
    write_reproduction(tmp_path / "one", "fig-cycles")
    shutil.copytree(tmp_path / "one" / "cells", tmp_path / "two" / "cells")
    measured = sorted((tmp_path / "two" / "cells").glob("*/by_cycles.json"))
    assert measured
    for path in measured:
        path.rename(path.with_name("costs.json"))
    for name in ("one", "two"):
        tool.collect_results(tmp_path / name, tmp_path / "results")
    lines = {line["cell"]: line["files"] for line in read_jsonl(tmp_path / "results" / "runs.jsonl")}
    assert all({"by_cycles.json", "costs.json"} <= lines[path.parent.name].keys() for path in measured)
    write_reproduction(tmp_path / "three", "theorem")
    tool.collect_results(tmp_path / "three", tmp_path / "results")
    assert [record["target"] for record in read_jsonl(tmp_path / "results" / "targets.jsonl")] == ["fig-cycles", "theorem"]


def test_tracked_results_survive_unpacking_and_collecting(tmp_path: Path) -> None:
    tool.unpack_results(RESULTS, tmp_path / "unpacked")
    tool.collect_results(tmp_path / "unpacked", tmp_path / "results")
    for name in ("runs.jsonl", "targets.jsonl"):
        assert (tmp_path / "results" / name).read_bytes() == (RESULTS / name).read_bytes()


def test_the_tool_collects_and_writes_the_page(tmp_path: Path) -> None:
    shutil.copytree(RESULTS / "accuracy", tmp_path / "results" / "accuracy")
    write_reproduction(tmp_path / "reproduced", "table3")
    stale = tmp_path / "docs" / "images" / "results" / "small" / "old.svg"
    stale.parent.mkdir(parents=True)
    stale.write_text("<svg/>")
    words = ["--collect", "reproduced", "--results", "results", "--page", "docs/results.md"]
    done = subprocess.run([sys.executable, str(TOOL), *words], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "saved docs/results.md" in done.stdout
    text = (tmp_path / "docs" / "results.md").read_text(encoding="utf-8")
    assert text.startswith(tool.HEADER)
    assert "| + Aggregation | ours | honest |" in text
    assert "(images/results/tiny/table3.svg)" in text
    assert [path.name for path in (tmp_path / "docs" / "images").rglob("*.*")] == ["table3.svg"]
    assert find_unmeasured(text, tmp_path / "results") == []
    (tmp_path / "results" / "targets.jsonl").write_text("")
    assert find_unmeasured(text, tmp_path / "results")


def test_bad_input_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="there are no results in"):
        tool.build_page(tmp_path)
    with pytest.raises(InputError, match="there is no finished cell in"):
        tool.collect_results(tmp_path, tmp_path / "results")
    (tmp_path / "runs.jsonl").write_text("{")
    with pytest.raises(ModelFolderError, match="is not JSON Lines"):
        tool.build_page(tmp_path)
    (tmp_path / "accuracy").mkdir()
    for name, sentence in (("frozen", "results of frozen features"), ("few", "results of few images"), ("cifar100", "CIFAR-100")):
        (tmp_path / "accuracy" / f"{name}.json").write_text("{")
        with pytest.raises(ModelFolderError, match=sentence):
            tool.build_page(tmp_path)
        (tmp_path / "accuracy" / f"{name}.json").unlink()
    done = subprocess.run([sys.executable, str(TOOL), "--results", "nowhere"], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 1
    assert done.stderr.startswith("results_page: there are no results in 'nowhere'")


# -- sections of benchmarks ------------------------------------------------------------------------------------------------------


def make_run(row: str, order: str, protocol: str, accuracy: float, **settings: Any) -> dict[str, Any]:
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
    make_run("paper, as released", "natural", "released: leaks", 70.0),
    make_run("paper", "natural", HONEST, 50.0),
    make_run("paper", "1", HONEST, 53.0),
    make_run("paper", "1", HONEST, 60.0, test_crop=1.0),
]


def test_honest_and_leaking_results_have_separate_tables() -> None:
    text = tool.format_benchmark(RUNS, tool.read_references(RESULTS), "image.png")
    honest, _, rest = text.partition("### Results of protocol RELEASED")
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
    for words in ("(image.png)", "cuda: X", "2026-01-02", "abababababab", "python benchmarks/cifar100.py"):
        assert words in text


def test_runs_on_validation_images_are_left_out(tmp_path: Path) -> None:
    selection = make_run("default", "1", HONEST, 99.0, validation=0.1)
    (tmp_path / "cifar100.json").write_text(json.dumps([*RUNS, selection]))
    assert tool.read_benchmark(tmp_path / "cifar100.json") == RUNS


@pytest.mark.parametrize("content", ["{", "[]", '[{"row": "paper"}]', '{"a": 1}'])
def test_another_file_is_refused(content: str, tmp_path: Path) -> None:
    (tmp_path / "cifar100.json").write_text(content)
    with pytest.raises(ModelFolderError, match="does not hold the CIFAR-100 benchmark; write it with"):
        tool.read_benchmark(tmp_path / "cifar100.json")


def test_references() -> None:
    values = {each["what"]: (each["protocol"], each["accuracy"]) for each in tool.read_references(RESULTS)}
    assert values["the authors' code, as released"] == ("released", [78.1])
    assert values["the authors' code, axes corrected"] == ("honest", [69.7])


def test_few_images_have_a_column_for_each_order_that_was_run(tmp_path: Path) -> None:
    environment = {"device": "cuda: X", "torch": "2", "python": "3", "caprompt": "0"}
    document = {"images_per_class": 7, "backbone": "deit", "date": "2026-01-02", "environment": environment}
    path = tmp_path / "few.json"
    path.write_text(json.dumps({**document, "rows": {"one": {"0": 50.125, "10": 49.0}, "two": {"2": 40.0}}}))
    text = tool.format_few(path)
    assert "## CIFAR-100, 7 training images of each class" in text
    assert "| ACC in percent | order 0 | order 2 | order 10 |" in text
    assert "| one | 50.12 | not run | 49.00 |" in text
    assert "| two | not run | 40.00 | not run |" in text
    assert "cuda: X" in text
    path.write_text(json.dumps(document))
    with pytest.raises(ModelFolderError, match="does not hold results of few images"):
        tool.format_few(path)
