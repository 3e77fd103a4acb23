"""The page as text: valid, self-contained and complete. Its behavior in a browser is tested in `test_browser`."""

from __future__ import annotations

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
from caprompt.report import page as page_module
from caprompt.report import render, write_report
from caprompt.report.run_data import RunRecord, load_runs

HTML = "{http://www.w3.org/1999/xhtml}"
KINDS = {"one": ["seed0"], "several": ["seed0", "seed1", "plain"], "leak": ["leak"], "joint": ["joint"]}


@pytest.fixture(scope="session")
def pages(runs: Path) -> dict[str, str]:
    return {kind: render(load_runs([runs / name for name in names])) for kind, names in KINDS.items()}


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
        assert table.findtext(f"{HTML}caption")
        assert all(header.attrib["scope"] in ("col", "row") for header in table.iter(f"{HTML}th"))
        widths = {len(list(row)) for row in table.iter(f"{HTML}tr")}
        assert len(widths) == 1
    assert all(image.attrib["alt"] for image in document.iter(f"{HTML}img"))
    figures = [svg for svg in document.iter("{http://www.w3.org/2000/svg}svg") if svg.attrib.get("role") == "img"]
    assert bool(figures) == (kind != "joint")
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
