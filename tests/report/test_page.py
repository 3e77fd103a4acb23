"""The page as text: whole, valid, on its own, and with everything in its place. What a browser makes of it is in `test_browser`."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import html5lib
import pytest

from caprompt.errors import InputError
from caprompt.report import page as page_module
from caprompt.report import render, write_report
from caprompt.report.run_data import RunRecord, gather

HTML = "{http://www.w3.org/1999/xhtml}"
KINDS = {"one": ["seed0"], "several": ["seed0", "seed1", "plain"], "leak": ["leak"], "joint": ["joint"]}


@pytest.fixture(scope="session")
def pages(runs: Path) -> dict[str, str]:
    return {kind: render(gather([runs / name for name in names])) for kind, names in KINDS.items()}


@pytest.mark.parametrize("kind", KINDS)
def test_structure(pages: dict[str, str], kind: str) -> None:
    document = html5lib.HTMLParser(strict=True).parse(pages[kind])
    assert document.attrib["lang"] == "en"
    assert len(document.findall(f".//{HTML}main")) == len(document.findall(f".//{HTML}h1")) == 1
    identities = [element.attrib["id"] for element in document.iter() if "id" in element.attrib]
    assert len(set(identities)) == len(identities)
    for element in document.iter():
        for reference in element.attrib.get("aria-labelledby", "").split():
            assert reference in identities
    links = [link.attrib["href"] for link in document.iter(f"{HTML}a")]
    assert links[0] == "#main"  # the skip link comes first
    assert {link.removeprefix("#") for link in links} <= set(identities)
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
def test_it_needs_nothing_from_elsewhere(pages: dict[str, str], kind: str) -> None:
    text = pages[kind]
    assert "default-src 'none'" in text
    assert not re.findall(r"(?:src|href|url\()\s*=?\s*[\"'(]?(?:https?:)?//", text)
    assert all(source.startswith("data:image/jpeg;base64,") for source in re.findall(r'src="([^"]*)', text))
    assert len(text.encode()) < 3_000_000


def test_every_number_of_a_run_is_there(runs: Path, pages: dict[str, str]) -> None:
    (run,) = gather([runs / "seed0"])
    for row in run.results.matrix:
        for value in row:
            assert f">{value:.1f}</td>" in pages["one"]
    for name, figure in run.results.summary().items():
        assert f"{figure:.1f}" in pages["one"], name
    assert "Task weights by cycle" in pages["one"]
    assert run.plan["environment"]["torch"] in pages["one"]
    assert run.plan["backbone"]["sha256"][:16] in pages["one"]
    assert f"{run.cost['trained_parameters']:,}" in pages["one"]


def test_the_protocol_comes_before_any_figure(pages: dict[str, str]) -> None:
    assert '<div class="protocol good">' in pages["one"]
    assert "no honest figures" not in pages["one"]
    for kind, word in (("leak", "released"), ("joint", "joint")):
        text = pages[kind]
        assert text.index(f"<strong>Protocol {word}: no honest figures</strong>") < text.index("<h2")
        assert '<div class="protocol bad">' in text


def changed(run: RunRecord, name: str, change: Callable[[str], str]) -> RunRecord:
    """A run one of whose classes has another name."""
    assert run.final is not None
    results = replace(run.results, tasks=[[change(each) if each == name else each for each in task] for task in run.results.tasks])
    final = replace(run.final, classes=tuple(change(each) if each == name else each for each in run.final.classes))
    return replace(run, results=results, final=final)


def test_names_of_classes_are_text(runs: Path) -> None:
    (run,) = gather([runs / "plain"])
    for name in [name for task in run.results.tasks for name in task]:
        run = changed(run, name, lambda own: f"<img src=x onerror=alert('{own}')>\"&")
    text = render([run])
    html5lib.HTMLParser(strict=True).parse(text)
    assert "<img src=x" not in text
    assert "&lt;img src=x onerror=alert(" in text


def test_pictures_only_where_they_may_be_shown(runs: Path, pages: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    records = gather([runs / "plain"])
    with_pictures, without = render(records), render(records, pictures=False)
    assert with_pictures.count("<img ") > 1
    assert "<img " not in without
    assert "left out on request" in without
    assert "Most confused classes" in without
    monkeypatch.setattr(page_module, "LARGEST", 10_000)
    large = render(records)
    assert "<img " not in large
    assert "larger than 3 MB" in large


def test_the_result_of_an_audit_is_shown(runs: Path) -> None:
    (run,) = gather([runs / "seed0"])
    assert "has not been audited" in render([run])
    arrangement = {"name": "alone", "accuracy": 90.0, "average_accuracy": 91.0, "changed": 2, "largest_difference": 0.5}
    audit = {"images": 9, "arrangements": [arrangement], "clean": True, "warnings": []}
    assert "No answer depends on the other images" in render([replace(run, audit=audit)])
    bad = render([replace(run, audit={**audit, "clean": False})])
    assert "these figures cannot be trusted" in bad
    assert bad.index("the audit found answers that depend") < bad.index("<h2")


def test_a_file_is_written_whole_or_not_at_all(runs: Path, tmp_path: Path) -> None:
    path = tmp_path / "new" / "report.html"
    write_report([runs / "seed0"], path)
    before = path.read_bytes()
    assert before.rstrip().endswith(b"</html>")
    with pytest.raises(InputError):
        write_report([runs / "seed0", runs / "leak"], path)
    assert path.read_bytes() == before
    assert [each.name for each in path.parent.iterdir()] == ["report.html"]
    with pytest.raises(InputError, match="is a folder; name the HTML file"):
        write_report([runs / "seed0"], tmp_path)


@pytest.mark.slow
def test_the_validator_of_the_w3c_finds_nothing(pages: dict[str, str], tmp_path: Path) -> None:
    jar = os.environ.get("VNU_JAR", "")
    if not Path(jar).is_file() or shutil.which("java") is None:
        pytest.skip("no Nu HTML checker here: needs java, and VNU_JAR saying where vnu.jar is")
    files = []
    for kind, text in pages.items():
        files.append(tmp_path / f"{kind}.html")
        files[-1].write_text(text, encoding="utf-8")
    # Its warnings are left out: it takes the policy's `data:` for a host and reports every picture as blocked.
    done = subprocess.run(["java", "-jar", jar, "--errors-only", *files], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
