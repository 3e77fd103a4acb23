"""The page as text: valid, self-contained and complete. Its behavior in a browser is tested in `test_browser`."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import html5lib
import pytest

from caprompt.errors import InputError
from caprompt.metrics import format_interval
from caprompt.report import page as page_module
from caprompt.report import render, render_model, write_model_report, write_report
from caprompt.report.model_data import ModelRecord
from caprompt.report.run_data import RunRecord, load_runs

HTML = "{http://www.w3.org/1999/xhtml}"
RUNS = {"one": ["seed0"], "several": ["seed0", "seed1", "plain"], "leak": ["leak"], "joint": ["joint"]}
KINDS = (*RUNS, "model", "long")


@pytest.fixture(scope="session")
def pages(runs: Path, record: ModelRecord, long_named: ModelRecord) -> dict[str, str]:
    pages = {kind: render(load_runs([runs / name for name in names])) for kind, names in RUNS.items()}
    return {**pages, "model": render_model(record), "long": render_model(long_named)}


@pytest.mark.parametrize("kind", KINDS)
def test_structure(pages: dict[str, str], kind: str) -> None:
    document = html5lib.HTMLParser(strict=True).parse(pages[kind])
    assert document.attrib["lang"] == "en"
    assert len(document.findall(f".//{HTML}main")) == len(document.findall(f".//{HTML}h1")) == 1
    ids = [element.attrib["id"] for element in document.iter() if "id" in element.attrib]
    assert len(set(ids)) == len(ids)
    for element in document.iter():
        for reference in element.attrib.get("aria-labelledby", "").split():
            assert reference in ids
    links = [link.attrib["href"] for link in document.iter(f"{HTML}a")]
    assert links[0] == "#main"  # the skip link comes first
    assert {link.removeprefix("#") for link in links} <= set(ids)
    for table in document.iter(f"{HTML}table"):
        assert table.findtext(f"{HTML}caption/{HTML}span")
        assert all(header.attrib["scope"] in ("col", "row") for header in table.iter(f"{HTML}th"))
        widths = {len(list(row)) for row in table.iter(f"{HTML}tr")}
        assert len(widths) == 1
    assert all(image.attrib["alt"] for image in document.iter(f"{HTML}img"))
    figures = [svg for svg in document.iter("{http://www.w3.org/2000/svg}svg") if svg.attrib.get("role") == "img"]
    assert figures
    assert all(svg.attrib["aria-label"] for svg in figures)


def test_headings_do_not_skip_a_level(pages: dict[str, str]) -> None:
    levels = [int(level) for level in re.findall(r"<h(\d)", pages["several"])]
    assert levels[0] == 1
    assert all(after <= before + 1 for before, after in pairwise(levels))


@pytest.mark.parametrize("kind", KINDS)
def test_page_is_self_contained(pages: dict[str, str], kind: str) -> None:
    text = pages[kind]
    assert "default-src 'none'" in text
    assert not re.findall(r"(?:src|href|url\()\s*=?\s*[\"'(]?(?:https?:)?//", text)
    assert all(source.startswith("data:image/jpeg;base64,") for source in re.findall(r'src="([^"]*)', text))
    assert len(text.encode()) < 3_000_000


def test_page_has_every_metric_of_a_run(runs: Path, pages: dict[str, str]) -> None:
    (run,) = load_runs([runs / "seed0"])
    for row in run.results.matrix:
        for value in row:
            assert f">{value:.1f}</td>" in pages["one"]
    for name, value in run.results.summary().items():
        assert f"{value:.1f}" in pages["one"], name
    assert "Task weights by cycle" in pages["one"]
    assert run.plan["environment"]["torch"] in pages["one"]
    assert run.plan["backbone"]["sha256"][:16] in pages["one"]
    assert f"{run.cost['trained_parameters']:,}" in pages["one"]
    assert "24 test images</dd>" in pages["one"]
    assert "Reliability of scores" in pages["one"]
    for images in run.results.rows[-1].images:
        assert f"({images} test images; at the end, 95 % interval " in pages["one"]


def test_protocol_comes_before_any_metric(pages: dict[str, str]) -> None:
    assert '<div class="protocol good">' in pages["one"]
    assert "not comparable" not in pages["one"]
    for kind, name in (("leak", "released"), ("joint", "joint")):
        text = pages[kind]
        assert text.index(f"<strong>Protocol {name}: not comparable</strong>") < text.index("<h2")
        assert '<div class="protocol bad">' in text


def rename_class(run: RunRecord, name: str, change: Callable[[str], str]) -> RunRecord:
    """Return the run with one of its classes renamed."""
    assert run.predictions is not None

    def rename(names: Sequence[str]) -> list[str]:
        return [change(each) if each == name else each for each in names]

    results = replace(run.results, tasks=[rename(names) for names in run.results.tasks])
    predictions = replace(run.predictions, classes=tuple(rename(run.predictions.classes)))
    return replace(run, results=results, predictions=predictions)


def test_class_names_are_escaped(runs: Path) -> None:
    (run,) = load_runs([runs / "plain"])
    for name in [name for task in run.results.tasks for name in task]:
        run = rename_class(run, name, lambda old: f"<img src=x onerror=alert('{old}')>\"&")
    text = render([run])
    html5lib.HTMLParser(strict=True).parse(text)
    assert "<img src=x" not in text
    assert "&lt;img src=x onerror=alert(" in text


def test_images_are_left_out_on_request_or_if_too_large(runs: Path, pages: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    records = load_runs([runs / "plain"])
    with_images, without = render(records), render(records, images=False)
    assert with_images.count("<img ") > 1
    assert "<img " not in without
    assert "left out on request" in without
    assert "Most confused classes" in without
    monkeypatch.setattr(page_module, "MAX_BYTES", 10_000)
    large = render(records)
    assert "<img " not in large
    assert "larger than 3 MB" in large


def test_audit_is_shown(runs: Path) -> None:
    (run,) = load_runs([runs / "seed0"])
    assert "has not been audited" in render([run])
    arrangement = {"name": "alone", "accuracy": 90.0, "average_accuracy": 91.0, "changed": 2, "largest_difference": 0.5}
    audit = {"images": 9, "arrangements": [arrangement], "clean": True, "warnings": []}
    assert "No prediction changes with batch composition" in render([replace(run, audit=audit)])
    bad = render([replace(run, audit={**audit, "clean": False})])
    assert "these metrics are not valid" in bad
    assert bad.index("the audit found predictions that change") < bad.index("<h2")


def test_page_of_a_model_has_its_metrics(record: ModelRecord, pages: dict[str, str]) -> None:
    text, evaluation = pages["model"], record.evaluation
    assert "<h1>pets: ncm</h1>" in text
    assert f"95 % interval {format_interval(evaluation.interval)}, 15 test images" in text
    assert f"{len(evaluation.mistakes)} of 15 test images are misclassified." in text
    assert "class &#39;cyan&#39; (4 images) has not been learned; left out" in text
    assert f"{evaluation.calibration_error:.1f} points apart" in text
    assert 'alt="test image 90.png, of class green"' in text
    assert record.model.backbone.sha256[:16] in text
    for part in ("What it has learned", "Classes", "Mistakes", "Confusion matrix", "Reliability of scores", "Task weights"):
        assert f">{part}</h2>" in text
    count = evaluation.confusion["green"]["red"]
    assert f"<td>{count} of 6</td>" in text


def test_model_without_mistakes_has_no_panel_of_them(record: ModelRecord) -> None:
    right = replace(record, predictions=replace(record.predictions, answer=record.predictions.true))
    text = render_model(right)
    assert "Mistakes" not in text
    assert "Confusion matrix" in text


def test_matrix_of_many_classes_is_cut(pages: dict[str, str]) -> None:
    assert "20 of 45 classes with the most mistakes" in pages["long"]
    assert pages["long"].count('class="upright"') == 22  # with the columns "other classes" and "all"
    assert 'class="scroll long"' in pages["long"]  # the table of all classes
    assert 'class="scroll long"' not in pages["model"]


def test_images_of_a_model_are_left_out_on_request_or_if_too_large(
    record: ModelRecord, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_model_report(record, tmp_path / "page.html", images=False)
    text = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert "<img " not in text
    assert "90.png" not in text
    assert "left out on request" in text
    monkeypatch.setattr(page_module, "MAX_BYTES", 10_000)
    assert "larger than 3 MB" in render_model(record)
    with pytest.raises(InputError, match="is a folder; give the path of the HTML file"):
        write_model_report(record, tmp_path)


def test_file_is_written_atomically(runs: Path, tmp_path: Path) -> None:
    path = tmp_path / "new" / "report.html"
    write_report([runs / "seed0"], path)
    before = path.read_bytes()
    assert before.rstrip().endswith(b"</html>")
    with pytest.raises(InputError):
        write_report([runs / "seed0", runs / "leak"], path)
    assert path.read_bytes() == before
    assert [each.name for each in path.parent.iterdir()] == ["report.html"]
    with pytest.raises(InputError, match="is a folder; give the path of the HTML file"):
        write_report([runs / "seed0"], tmp_path)


@pytest.mark.slow
def test_w3c_validator_reports_no_errors(pages: dict[str, str], tmp_path: Path) -> None:
    jar = os.environ.get("VNU_JAR", "")
    if not Path(jar).is_file() or shutil.which("java") is None:
        pytest.skip("the Nu HTML checker is not installed: it needs java, and VNU_JAR with the path of vnu.jar")
    files = []
    for kind, text in pages.items():
        files.append(tmp_path / f"{kind}.html")
        files[-1].write_text(text, encoding="utf-8")
    # No warnings: it takes the policy's `data:` for a host and reports every image as blocked.
    done = subprocess.run(["java", "-jar", jar, "--errors-only", *files], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_text_that_is_not_utf8_is_escaped(runs: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(runs / "seed0", tmp_path / "run"))
    plan = json.loads((folder / "run.json").read_text())
    (folder / "run.json").write_text(json.dumps({**plan, "warnings": ["caf\udce9 and \ud800"]}))
    write_report([folder], tmp_path / "report.html", images=False)
    assert r"caf\xe9 and \ud800" in (tmp_path / "report.html").read_text(encoding="utf-8")
